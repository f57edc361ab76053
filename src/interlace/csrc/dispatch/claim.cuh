// Claim a ticket of the launch.
#pragma once
#include "../ring/ring.cuh"

// By a warp.
DEVICE unsigned long long claim(const Launch& launch) {
  unsigned long long ticket = 0;
  if (first_lane()) ticket = atomicAdd(launch.starts, 1ull);
  return __shfl_sync(0xffffffff, ticket, 0);
}
