// Outline of a row of logits: of each segment its largest logit (`peak`), and the sum of its weights relative to that.
// A tile is BN columns of a row; a warp has a segment at a time. A greedy row is not read: it has no weight.
#pragma once
#include "segments.cuh"
#include "generated/arguments.cuh"

DEVICE void outline_tile(const Tile& tile, const Arguments& a) {
  const float inverse = inverse_of(a.temperature[tile.i]);
  const int end = min((tile.j + 1) * BN, a.N);
  const long long segments = (long long)tile.i * a.SEGMENTS;
  if (!(inverse > 0.0f)) {
    for (int column = tile.j * BN + thread() * SEGMENT; column < end; column += THREADS * SEGMENT) {
      a.peak[segments + column / SEGMENT] = lowest();
      a.weight[segments + column / SEGMENT] = 0.0f;
    }
    return;
  }
  const auto* const row = a.x + (long long)tile.i * a.N;
#pragma unroll 4
  for (int segment = warp_of(); segment < BN / SEGMENT; segment += WARPS) {
    const int column = tile.j * BN + segment * SEGMENT;
    const int low = column + lane_of(), high = low + 32;
    const float first = low < end ? widened(row[low]) : lowest(), second = high < end ? widened(row[high]) : lowest();
    const float peak = warp_max(fmaxf(first, second));
    float weight = 0.0f;
    if (first > lowest()) weight += __expf((first - peak) * inverse);
    if (second > lowest()) weight += __expf((second - peak) * inverse);
    weight = warp_sum(weight);
    if (lane_of() == 0 && column < end) {
      const long long at = segments + column / SEGMENT;
      a.peak[at] = peak;
      a.weight[at] = weight;
    }
  }
}
