// Sum over all threads of a block, in the same order every time; `each`: a float of scratch for each warp.
#pragma once
#include "../rows.cuh"

DEVICE float block_sum(float value, float* each) {
  value = warp_sum(value);
  if (lane_of() == 0) each[warp_of()] = value;
  synchronise_block();
  float sum = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) sum += each[warp];
  return sum;
}
