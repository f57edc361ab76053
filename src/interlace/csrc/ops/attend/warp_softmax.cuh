// Online softmax of one warp over blocks of 16 positions on tensor cores; products.cuh says how.
#pragma once
#include "rows_in_lanes.cuh"

constexpr int BLOCK_ROWS = 16, BLOCK_BYTES = BLOCK_ROWS * 128;  // positions of a product, and their bytes of a panel
// Blocks that a warp takes at once, as independent chains of instructions; a split has few.
constexpr int BLOCKS = WHOLE && !WIDE ? 2 : 1, AT_ONCE = BLOCKS * BLOCK_ROWS;
constexpr int STEPS = D / 16, STEPS_AT_ONCE = WIDE ? 4 : STEPS;  // products along a head, and matrices loaded for them
constexpr int CHAINS = WIDE ? 2 : D / 32;                        // independent chains of two products
constexpr float LAG = 8.0f;  // most that a score exceeds the peak by; 16-bit weights have room for it

// Offset of the 16-byte row that this lane addresses for ldmatrix, of a block's positions up to `last`.
DEVICE unsigned matrix_row(int last) {
  const int row = min(lane_of() / 16 * 8 + lane_of() % 8, last);
  return row * 128 + ((lane_of() / 8 % 2 ^ row & 7) << 4);
}

// Online softmax of a warp for the heads of its set. Lane l has peak and total of head l / 4, and sums of weighted
// values of elements l / 4 and l / 4 + 8 of each 16, of heads 2 (l % 4) and the next one.
struct OnlineSoftmax {
  unsigned queries[WIDE ? 1 : STEPS][4];
  unsigned* kept;                     // this lane's queries, if WIDE: 16 bytes a step, next to those of other lanes
  float sums[STEPS][4], peak, total;  // of this lane's positions
  float largest;                      // score of this lane's positions

  // Lanes without a head have the last one's queries.
  DEVICE OnlineSoftmax() {
    if constexpr (WIDE) {
      unsigned* const of_warp = scratch<unsigned>() + warp_of() * HEADS_AT_ONCE * PITCH;
      kept = of_warp + (min(lane_of() / 4, HEADS_AT_ONCE - 1) * 4 + lane_of() % 4) * 4;
    }
  }
  DEVICE void set_query(int p, float2 query) {  // two elements of piece p, and their rounding errors
    const unsigned pair = as_pair(query.x, query.y);
    const float2 stored = widened_pair(pair, STORED);
    const unsigned error = as_pair(query.x - stored.x, query.y - stored.y);
    if constexpr (!WIDE) {
      queries[p / 2][p % 2 * 2] = pair, queries[p / 2][p % 2 * 2 + 1] = error;
    } else if (lane_of() / 4 < HEADS_AT_ONCE) {
      *reinterpret_cast<unsigned long long*>(kept + p / 2 * HEADS_AT_ONCE * 16 + p % 2 * 2) =
          (unsigned long long)error << 32 | pair;
    }
  }
  DEVICE void load_queries(unsigned (&to)[4], int step) const {
    const uint4 pairs = *reinterpret_cast<const uint4*>(kept + step * HEADS_AT_ONCE * 16);
    to[0] = pairs.x, to[1] = pairs.y, to[2] = pairs.z, to[3] = pairs.w;
  }
  // Counts exponents from the largest score so far.
  DEVICE void raise(float new_peak) {
    new_peak = max_of_four(fmaxf(peak, new_peak));
    const float fade = power_of_two(peak - new_peak);
    peak = new_peak, total *= fade;
    const int head = lane_of() % 4 * 8;  // the lane that has its peak
    const float even = __shfl_sync(0xffffffff, fade, head), odd = __shfl_sync(0xffffffff, fade, head + 4);
#pragma unroll
    for (int p = 0; p < STEPS; ++p) sums[p][0] *= even, sums[p][1] *= odd, sums[p][2] *= even, sums[p][3] *= odd;
  }
  // Adds BLOCKS blocks of keys and values, the first `count` of whose positions are the share's, at least one. `at`:
  // this lane's row of a block.
  DEVICE void add(unsigned keys, unsigned values, unsigned at, int count) {
    const int lane = lane_of();
    float weights[BLOCKS][4], block_peak = NOTHING;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      float scores[CHAINS][2][4] = {};  // 8 positions each
#pragma unroll
      for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
        unsigned rows[STEPS_AT_ONCE][4];
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS)
            load_matrices(rows[n], (keys + b * BLOCK_BYTES + at ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS) {
            if constexpr (WIDE) load_queries(queries[0], p);
#pragma unroll
            for (int half = 0; half < 2; ++half)
              multiply(scores[p % CHAINS][half], queries[WIDE ? 0 : p], rows[n][half * 2], rows[n][half * 2 + 1]);
          }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[0][i / 2][i % 2] + scores[0][i / 2][i % 2 + 2];
#pragma unroll
        for (int c = 1; c < CHAINS; ++c) score += scores[c][i / 2][i % 2] + scores[c][i / 2][i % 2 + 2];
        weights[b][i] = b * BLOCK_ROWS + i / 2 * 8 + lane % 4 * 2 + i % 2 < count ? score : NOTHING;
        block_peak = fmaxf(block_peak, weights[b][i]);
      }
    }
    // Scores after the last position do not count, but a value there may be NaN, which no weight makes zero: the last
    // value is read again instead.
    unsigned from[BLOCKS], columns[BLOCKS][STEPS_AT_ONCE][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) from[b] = b * BLOCK_BYTES + at;
    if (count < AT_ONCE) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const int last = min(count - 1 - b * BLOCK_ROWS, BLOCK_ROWS - 1);
        from[b] = last < 0 ? matrix_row(0) : b * BLOCK_BYTES + matrix_row(last);
      }
    }
    const auto load_columns = [&](int first) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS)
            load_transposed(columns[b][n], (values + from[b] ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
    };
    load_columns(0);
    if (!WHOLE) largest = fmaxf(largest, block_peak);
    if (__any_sync(0xffffffff, block_peak > peak + LAG)) raise(block_peak);
    unsigned pairs[BLOCKS][2];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float first = power_of_two(weights[b][i] - peak), second = power_of_two(weights[b][i + 1] - peak);
        total += first + second;
        pairs[b][i / 2] = as_pair(first, second);
      }
#pragma unroll
    for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
      if (first) load_columns(first);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS) multiply(sums[p], columns[b][n], pairs[b][0], pairs[b][1]);
    }
  }
  // Stores for each head D sums, the peak and the total.
  DEVICE void store(float* heads) {
    if (!WHOLE) raise(largest);  // combine.cuh expects the largest score as the peak of a split
    const float whole = sum_of_four(total);
    const int lane = lane_of();
    if constexpr (WIDE) __syncwarp();  // sums go where queries were
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int head = lane % 4 * 2 + odd;
      if (head >= HEADS_AT_ONCE) continue;
#pragma unroll
      for (int p = 0; p < PIECES; ++p) heads[head * PITCH + p * 8 + lane / 4] = sums[p / 2][p % 2 * 2 + odd];
    }
    if (lane % 4 || lane / 4 >= HEADS_AT_ONCE) return;
    heads[lane / 4 * PITCH + D] = peak, heads[lane / 4 * PITCH + D + 1] = whole;
  }
};
