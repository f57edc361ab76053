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
DEVICE void append_tile(const Tile& tile, const Arguments& a) {
  float* const key = scratch<float>() + warp_of() * D;
  for (int n = warp_of(); n < COUNT; n += WARPS) {
    const int i = PAGE ? n : tile.i, j = PAGE ? tile.i : n, at = position_of(a.position, i, a.CAPACITY);
    const long long head = (long long)i * HEADS + j, row = row_of(a, i, j, at) * D;
    if (row < 0) continue;
    for (int d = lane_of(); d < D; d += 32) a.v_cache[row + d] = a.v[head * D + d];
    place<D>(key, a.k + head * D, a.k_norm, a.rope + (long long)at * D, EPS);
    __syncwarp();
    for (int d = lane_of(); d < D; d += 32) put(a.k_cache + row + d, key[d]);
    __syncwarp();
  }
}
""",
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional=("table", "k_norm"),
    scratch_bytes=lambda op: 4 * _WARPS * int(op.param("D")),
    proved=True,
)
