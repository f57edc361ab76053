// Barriers of the ring that clusters use.
#pragma once
#include "../ptx.cuh"

DEVICE unsigned independent_empty(int slot);
DEVICE unsigned dependent_empty(int slot);
DEVICE bool first_lane();
