// Count of outstanding items.
#pragma once
#include "queue.cuh"

// By a warp: so many items are about to come.
DEVICE void expect(const Launch& launch, unsigned run, int count) {
  if (first_lane()) atomicAdd(counter_of(launch, run, OUTSTANDING), (unsigned)count);
}
