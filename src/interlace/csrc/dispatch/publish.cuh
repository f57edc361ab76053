// Post a finished item.
#pragma once
#include "../ring/ring.cuh"

// By a warp.
DEVICE void publish(const Launch& launch, const Item& item, int semaphore) {
  if (!first_lane()) return;
  random_delay(launch, item, 1);
  add_release(launch.semaphores + semaphore);
}
