// Choose the CHOSEN largest of E logits of each token (top-k routing), and softmax over them as weights.
//
// A warp has TOGETHER tokens at a time, which hides the latency of memory and of reductions. Logits are compared as
// integers of the same order, by one instruction for all lanes; an expert that is taken, and one beyond E, is below
// all.
#pragma once
#include "../rows.cuh"
#include "generated/arguments.cuh"

constexpr int LANE_EXPERTS = (E + 31) / 32, NONE = -0x7fffffff;
DEVICE int key_of(float x) {
  const int bits = __float_as_int(x + 0.0f);  // -0 is 0
  return max(bits ^ (bits >> 31 & 0x7fffffff), NONE + 1);
}
DEVICE float float_of(int key) { return __int_as_float(key ^ (key >> 31 & 0x7fffffff)); }
DEVICE void load_keys(const float* logits, int (&keys)[LANE_EXPERTS]) {
#pragma unroll
  for (int n = 0; n < LANE_EXPERTS; ++n) {
    const int e = n * 32 + lane_of();
    keys[n] = e < E ? key_of(logits[e]) : NONE;
  }
}
// Called by all threads: experts and weights of tokens `begin` to `end`, and counts of each expert. `shares`: scratch
// for CHOSEN floats of each token of the block.
DEVICE void choose_all(const float* logits, int begin, int end, int* experts, float* weights, int* counts,
                       float* shares) {
  const int lane = lane_of();
  float* const own_shares = shares + warp_of() * TOGETHER * CHOSEN;
  for (int first = begin + warp_of(); first < end; first += WARPS * TOGETHER) {
    int keys[TOGETHER][LANE_EXPERTS];
    float peaks[TOGETHER], sums[TOGETHER];
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) load_keys(logits + (long long)min(first + n * WARPS, end - 1) * E, keys[n]);
#pragma unroll 1
    for (int k = 0; k < CHOSEN; ++k) {
#pragma unroll
      for (int n = 0; n < TOGETHER; ++n) {
        int largest = keys[n][0], where = 0;
#pragma unroll
        for (int p = 1; p < LANE_EXPERTS; ++p)
          if (keys[n][p] > largest) largest = keys[n][p], where = p;
        const int best = __reduce_max_sync(0xffffffff, largest);
        const int expert = __reduce_min_sync(0xffffffff, largest == best ? where * 32 + lane : E);
#pragma unroll
        for (int p = 0; p < LANE_EXPERTS; ++p)
          if (p * 32 + lane == expert) keys[n][p] = NONE;
        if (k == 0) peaks[n] = float_of(best), sums[n] = 0.0f;
        const float share = __expf(float_of(best) - peaks[n]);
        sums[n] += share;
        if (lane == 0 && first + n * WARPS < end) {
          experts[(long long)(first + n * WARPS) * CHOSEN + k] = expert;
          own_shares[n * CHOSEN + k] = share;
          atomicAdd(counts + expert, 1);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) {
      const int t = first + n * WARPS;
      for (int k = lane; t < end && k < CHOSEN; k += 32)
        weights[(long long)t * CHOSEN + k] = own_shares[n * CHOSEN + k] / sums[n];
    }
    __syncwarp();
  }
}
