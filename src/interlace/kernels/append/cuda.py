"""The CUDA C++ body that appends to caches, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.text import TextBody

_WARPS = 8  # of a block at most

APPEND_TEXT = TextBody(
    ROWS
    + PLACED
    + r"""
DEVICE void append_tile(const Tile& tile, const Arguments& a) {
  const int at = position_of(a.position, tile.i, a.CAPACITY);
  float* const key = scratch<float>() + warp_of() * D;
  for (int j = warp_of(); j < HEADS; j += WARPS) {
    const long long head = (long long)tile.i * HEADS + j, row = (head * a.CAPACITY + at) * D;
    for (int d = lane_of(); d < D; d += 32) a.v_cache[row + d] = a.v[head * D + d];
    place<D>(key, a.k + head * D, a.k_norm, a.rope + (long long)at * D, EPS);
    __syncwarp();
    for (int d = lane_of(); d < D; d += 32) put(a.k_cache + row + d, key[d]);
    __syncwarp();
  }
}
""",
    "append_tile",
    constants=("HEADS", "D", "EPS"),
    optional=("k_norm",),
    scratch_bytes=lambda op: 4 * _WARPS * int(op.param("D")),
    proved=True,
)
