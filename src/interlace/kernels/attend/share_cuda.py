"""What the CUDA C++ bodies of attention have in common: exponents, and which cached positions a tile has."""

from __future__ import annotations

SHARE = r"""
constexpr float NOTHING = -1e30f;  // below every score; an exponent of it is 0, and of itself 1, times a total of 0
constexpr float SCALE = 1.4426950408889634f;
DEVICE float power_of_two(float x) {  // 0 where it is below the least normal number
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The cached positions of a tile, from the first to one after the last.
struct Share {
  int low, high;
};
DEVICE Share share_of(const Tile& tile, int at) {
  const int each = (((at + BLOCK - 1) / BLOCK + SPLITS - 1) / SPLITS) * BLOCK, low = min(tile.l * each, at);
  return {low, min(low + each, at)};
}
// Past the nearest cache, which may have what was there a launch ago.
template <class A> DEVICE int position_in(const Tile& tile, const A& a) {
  return min(max(__ldcg(a.position + tile.i), 0), a.CAPACITY - 1);
}
"""
