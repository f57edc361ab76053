// Termination: workers poll the count of outstanding items.
#pragma once
#include "counted.cuh"

// By a warp: an item is done, and all that it wants has come.
DEVICE void count_off(const Launch& launch, const Item& item) {
  if (!first_lane()) return;
  int* const at = reinterpret_cast<int*>(counter_of(launch, item.run, OUTSTANDING));
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(-1) : "memory");
}
// By a warp that has nothing: whether nothing is left.
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) {
  return launch.queue.ready + load_acquire(reinterpret_cast<const int*>(counter_of(launch, run, OUTSTANDING))) == 0;
}
