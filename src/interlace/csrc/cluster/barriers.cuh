// Functions of the ring that clusters use before the ring defines them.
#pragma once
#include "../ptx.cuh"

DEVICE unsigned prefetch_empty(int slot);
DEVICE unsigned load_empty(int slot);
DEVICE bool first_lane();
