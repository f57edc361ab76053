// Adaptive quadrature: the sum of all intervals' values.
#pragma once
#include "block_sum.cuh"
#include "generated/arguments.cuh"

DEVICE void total_tile(const Tile& tile, const Arguments& a) {
  float sum = 0.0f;
#pragma unroll 4
  for (int n = thread(); n < a.N; n += THREADS) sum += a.value[n];
  sum = block_sum(sum, scratch<float>());
  if (thread() == 0) a.out[0] = sum;
}
