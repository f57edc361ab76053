// Outline of a row of logits: of each segment its largest logit (`peak`), and the sum of its weights relative to that.
// A tile is BN columns of a row. Where rows are aligned by pieces of 16 bytes, a segment is the pieces of neighbouring
// lanes; else a warp has a segment at a time. A greedy row is not read: it has no weight.
#pragma once
#include "segments.cuh"
#include "generated/arguments.cuh"

// Reduces the logits of LANES neighbouring lanes, COUNT of each, and stores the result of the segment they make up.
template <int LANES, int COUNT>
DEVICE void outline_segment(const float (&value)[COUNT], float inverse, float* peak_at, float* weight_at, bool stores) {
  float peak = value[0], weight = 0.0f;
#pragma unroll
  for (int e = 1; e < COUNT; ++e) peak = fmaxf(peak, value[e]);
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, distance));
#pragma unroll
  for (int e = 0; e < COUNT; ++e)
    if (value[e] > lowest()) weight += __expf((value[e] - peak) * inverse);
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2) weight += __shfl_xor_sync(0xffffffff, weight, distance);
  if (stores && lane_of() % LANES == 0) *peak_at = peak, *weight_at = weight;
}
template <class T>
DEVICE void outline_columns(const T* row, int column, int end, float inverse, float* peaks, float* weights) {
  constexpr int E = Piece<T>::ELEMENTS, AT_ONCE = 4;
  if (is_aligned(row + column) && (end - column) % E == 0) {
#pragma unroll 1
    for (int first = column; first < end; first += AT_ONCE * THREADS * E) {
      Elements<T> pieces[AT_ONCE];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n)
        pieces[n] = piece_at(row + min(first + (n * THREADS + thread()) * E, end - E), true);
#pragma unroll 1
      for (int n = 0; n < AT_ONCE; ++n, advance(pieces)) {
        const int at = first + (n * THREADS + thread()) * E;
        float value[E];
#pragma unroll
        for (int e = 0; e < E; ++e) value[e] = at < end ? widened(pieces[0].items[e]) : lowest();
        outline_segment<SEGMENT / E>(value, inverse, peaks + at / SEGMENT, weights + at / SEGMENT, at < end);
      }
    }
  } else {
#pragma unroll 1
    for (int at = column + warp_of() * SEGMENT; at < end; at += WARPS * SEGMENT) {
      const int low = at + lane_of(), high = low + 32;
      const float value[] = {low < end ? widened(row[low]) : lowest(), high < end ? widened(row[high]) : lowest()};
      outline_segment<32>(value, inverse, peaks + at / SEGMENT, weights + at / SEGMENT, true);
    }
  }
}
DEVICE void outline_tile(const Tile& tile, const Arguments& a) {
  const float inverse = inverse_of(a.temperature[tile.i]);
  const int column = tile.j * BN, end = min(column + BN, a.N);
  float* const peaks = a.peak + (long long)tile.i * a.SEGMENTS;
  float* const weights = a.weight + (long long)tile.i * a.SEGMENTS;
  if (inverse > 0.0f) {
    outline_columns(a.x + (long long)tile.i * a.N, column, end, inverse, peaks, weights);
    return;
  }
  for (int segment = column / SEGMENT + thread(); segment * SEGMENT < end; segment += THREADS)
    peaks[segment] = lowest(), weights[segment] = 0.0f;
}
