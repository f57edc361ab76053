// Choose the experts of tokens (top-k).
#pragma once

constexpr int PER = (E + 31) / 32, NONE = -0x7fffffff;
DEVICE int key_of(float x) {
  const int bits = __float_as_int(x + 0.0f);  // -0 is 0
  return max(bits ^ (bits >> 31 & 0x7fffffff), NONE + 1);
}
DEVICE float float_of(int key) { return __int_as_float(key ^ (key >> 31 & 0x7fffffff)); }
DEVICE void load_keys(const float* logits, int (&keys)[PER]) {
#pragma unroll
  for (int n = 0; n < PER; ++n) {
    const int e = n * 32 + lane_of();
    keys[n] = e < E ? key_of(logits[e]) : NONE;
  }
}
// By all threads: the experts of tokens from `begin` to `end`, each counted, and their weights; `shares` has CHOSEN for
// each token meanwhile. A warp has some tokens at a time: memory is far, and so is what all lanes find together.
DEVICE void choose_all(const float* logits, int begin, int end, int* experts, float* weights, int* counts,
                       float* shares) {
  const int lane = lane_of();
  float* const mine = shares + warp_of() * TOGETHER * CHOSEN;
  for (int first = begin + warp_of(); first < end; first += WARPS * TOGETHER) {
    int keys[TOGETHER][PER];
    float most_of[TOGETHER], sums[TOGETHER];
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) load_keys(logits + (long long)min(first + n * WARPS, end - 1) * E, keys[n]);
#pragma unroll 1
    for (int k = 0; k < CHOSEN; ++k) {
#pragma unroll
      for (int n = 0; n < TOGETHER; ++n) {
        int most = keys[n][0], where = 0;
#pragma unroll
        for (int p = 1; p < PER; ++p)
          if (keys[n][p] > most) most = keys[n][p], where = p;
        const int best = __reduce_max_sync(0xffffffff, most);
        const int expert = __reduce_min_sync(0xffffffff, most == best ? where * 32 + lane : E);
#pragma unroll
        for (int p = 0; p < PER; ++p)
          if (p * 32 + lane == expert) keys[n][p] = NONE;
        if (k == 0) most_of[n] = float_of(best), sums[n] = 0.0f;
        const float share = __expf(float_of(best) - most_of[n]);
        sums[n] += share;
        if (lane == 0 && first + n * WARPS < end) {
          experts[(long long)(first + n * WARPS) * CHOSEN + k] = expert;
          mine[n * CHOSEN + k] = share;
          atomicAdd(counts + expert, 1);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) {
      const int t = first + n * WARPS;
      for (int k = lane; t < end && k < CHOSEN; k += 32)
        weights[(long long)t * CHOSEN + k] = mine[n * CHOSEN + k] / sums[n];
    }
    __syncwarp();
  }
}
