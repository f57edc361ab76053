// Heads of attention, one by one warp: their elements in registers, RMS norm, and rotary embedding (kernels/rope.py).
#pragma once
#include "rows.cuh"

// A lane's elements of a head of D: number `at(n)` of the low and of the high half, which are rotated together.
template <int D, class T> struct Halves {
  static constexpr int HALF = D / 2, EACH = (HALF + 31) / 32;
  T low[EACH], high[EACH];
  DEVICE static bool has(int n) { return HALF % 32 == 0 || n * 32 + lane_of() < HALF; }
  DEVICE static int at(int n) { return HALF % 32 == 0 ? n * 32 + lane_of() : min(n * 32 + lane_of(), HALF - 1); }
  DEVICE void load(const T* from) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) low[n] = from[at(n)], high[n] = from[at(n) + HALF];
  }
  DEVICE void store(T* to) const {
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      if (has(n)) to[at(n)] = low[n], to[at(n) + HALF] = high[n];
  }
};
template <int D, class T> DEVICE void put(T* to, const Halves<D, float>& from) {
  Halves<D, T> head;
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) head.low[n] = rounded<T>(from.low[n]), head.high[n] = rounded<T>(from.high[n]);
  head.store(to);
}
template <int D, class T> DEVICE Halves<D, T> halves_at(const T* from) {
  Halves<D, T> halves;
  halves.load(from);
  return halves;
}
// Weight of the RMS norm of heads, if there is one. It depends on no head: load it together with the first one.
template <int D, class T> struct Gains {
  bool any;
  Halves<D, T> of = {};
  DEVICE Gains(const T* weight) : any(weight) {
    if (any) of.load(weight);
  }
};
template <int D, class T> DEVICE Gains<D, T> gains_at(const T* weight) { return {weight}; }
// Normalises a head (if there are gains), and rotates it by a row of the table; called by a warp.
template <int D, class T, class W>
DEVICE Halves<D, float> transform(const Halves<D, T>& x, const Gains<D, W>& gains, const Halves<D, float>& angles,
                                  float eps) {
  Halves<D, float> head;
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) head.low[n] = widened(x.low[n]), head.high[n] = widened(x.high[n]);
  if (gains.any) {
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < head.EACH; ++n)
      if (head.has(n)) squares += head.low[n] * head.low[n] + head.high[n] * head.high[n];
    const float scale = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
    for (int n = 0; n < head.EACH; ++n) {
      head.low[n] = head.low[n] * scale * widened(gains.of.low[n]);
      head.high[n] = head.high[n] * scale * widened(gains.of.high[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) {
    const float low = head.low[n], high = head.high[n], cosine = angles.low[n], sine = angles.high[n];
    head.low[n] = rotate_part(low, cosine, -high, sine);
    head.high[n] = rotate_part(high, cosine, low, sine);
  }
  return head;
}
// The same, from memory to `out`, which may be where it came from.
template <int D, class T, class W>
DEVICE void transform(float* out, const T* x, const W* weight, const float* angles, float eps) {
  transform<D>(halves_at<D>(x), gains_at<D>(weight), halves_at<D>(angles), eps).store(out);
}
// The position of a sequence, clamped to the cache.
DEVICE int position_of(const int* positions, int sequence, int capacity) {
  return min(max(positions[sequence], 0), capacity - 1);
}
