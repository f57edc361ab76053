"""The CUDA C++ body that appends to caches, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import TextBody

_WARPS = 8  # of a block at most

APPEND_TEXT = TextBody(
    ROWS
    + PLACED
    + PAGES
    + r"""
// Of words, two elements each: a head's key, and its value, to where it belongs if anywhere.
template <class A, class T> DEVICE void poll_head(const Tile& tile, const A& a, long long head, float* key, T* value) {
  for (int d = lane_of() * 2; d < D; d += 64) {
    Words<1> k(publication(tile, a.k_number, a.publications)), v(publication(tile, a.v_number, a.publications));
    Patience patience;
#pragma unroll 1
    for (;;) {
      k.ask([&](int) { return a.k + (head * D + d) / 2; }), v.ask([&](int) { return a.v + (head * D + d) / 2; });
      if (k.came() && v.came()) break;
      const unsigned late = k.came() ? a.v_number : a.k_number;
      if (patience.over(tile, publication(tile, late, a.publications), late)) break;
    }
    key[d] = widened(T{(unsigned short)k.data(0)}), key[d + 1] = widened(T{(unsigned short)(k.data(0) >> 16)});
    if (value) value[d] = T{(unsigned short)v.data(0)}, value[d + 1] = T{(unsigned short)(v.data(0) >> 16)};
  }
  __syncwarp();
}
template <class A> DEVICE void append_with(const Tile& tile, const A& a) {
  float* const key = scratch<float>() + warp_of() * D;
  for (int n = warp_of(); n < COUNT; n += WARPS) {
    const int i = PAGE ? n : tile.i, j = PAGE ? tile.i : n, at = position_of(a.position, i, a.CAPACITY);
    const long long head = (long long)i * HEADS + j, row = row_of(a, i, j, at) * D;
    if constexpr (k_words) {
      poll_head(tile, a, head, key, row < 0 ? nullptr : a.v_cache + row);
      if (row < 0) continue;
      place<D>(key, key, a.k_norm, a.rope + (long long)at * D, EPS);
    } else {
      if (row < 0) continue;
      for (int d = lane_of(); d < D; d += 32) a.v_cache[row + d] = a.v[head * D + d];
      place<D>(key, a.k + head * D, a.k_norm, a.rope + (long long)at * D, EPS);
    }
    __syncwarp();
    for (int d = lane_of(); d < D; d += 32) put(a.k_cache + row + d, key[d]);
    __syncwarp();
  }
}
DEVICE void append_tile(const Tile& tile, const Arguments& a) { append_with(tile, a); }
""",
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional=("table", "k_norm"),
    scratch_bytes=lambda op: 4 * _WARPS * int(op.param("D")),
    proved=True,
    polls=("k", "v"),
    by_words=lambda op, tensors: tensors["k"].dtype.itemsize == 2,
)
