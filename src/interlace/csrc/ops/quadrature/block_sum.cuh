// Sum over all threads, in the same order every time.
#pragma once

DEVICE float block_sum(float mine, float* each) {
  mine = warp_sum(mine);
  if (lane_of() == 0) each[warp_of()] = mine;
  synchronise_block();
  float sum = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) sum += each[warp];
  return sum;
}
