// Rotate heads (RMS norm, then rotary embedding): out[r, h] = rotated x[BASE + r, h]. A tile is BM rows of BH heads.
//
// Heads are all latency, so a warp loads AT_ONCE of them, and the weight of the norm, before it uses the first.
#pragma once
#include "heads.cuh"
#include "generated/arguments.cuh"

constexpr int AT_ONCE = Halves<D, float>::EACH > 2 ? 2 : 4;

template <class A, class T> DEVICE void rotate_with(const Tile& tile, const A& a, T* out) {
  const auto gains = gains_at<D>(a.norm);
  const int top = tile.i * BM, left = tile.j * BH, heads = min(BH, a.HEADS - left);
  const int all = min(BM, a.ROWS - top) * heads;
#pragma unroll 1
  for (int first = warp_of() * AT_ONCE; first < all; first += WARPS * AT_ONCE) {
    Halves<D, T> x[AT_ONCE];
    Halves<D, float> angles[AT_ONCE];
    long long to[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int which = min(first + n, all - 1), row = top + which / heads;
      to[n] = ((long long)row * a.HEADS + left + which % heads) * D;
      x[n].load(a.x + to[n] + (long long)a.BASE * a.HEADS * D);
      angles[n].load(a.rope + (long long)position_of(a.position, a.BASE + row, a.CAPACITY) * D);
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
      if (first + n < all) put(out + to[n], transform(x[n], gains, angles[n], EPS));
  }
}
DEVICE void rotate_tile(const Tile& tile, const Arguments& a) { rotate_with(tile, a, a.out); }
