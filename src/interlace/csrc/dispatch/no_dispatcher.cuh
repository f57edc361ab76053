// Hooks of a launch without a dispatcher.
#pragma once
#include "../ring/ring.cuh"

DEVICE void finish(const Launch& launch, const Item& item, int taken, int semaphore) {}
DEVICE void serve(const Launch& launch) {}
