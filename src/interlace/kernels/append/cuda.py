"""The CUDA C++ body that appends to caches, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.text import TextBody

APPEND_TEXT = TextBody(
    ROWS
    + PLACED
    + r"""
DEVICE void append_tile(const Tile& tile, const Arguments& a) {
  const long long head = (long long)tile.i * HEADS + tile.j;
  const int at = position_of(a.position, tile.i, a.CAPACITY);
  const long long row = (head * a.CAPACITY + at) * D;
  if (warp_of() == 0) {
    float* const key = scratch<float>();
    place<D>(key, a.k + head * D, a.k_norm, a.rope + (long long)at * D, EPS);
    __syncwarp();
    for (int d = lane_of(); d < D; d += 32) put(a.k_cache + row + d, key[d]);
  } else if (warp_of() == 1) {
    for (int d = lane_of(); d < D; d += 32) a.v_cache[row + d] = a.v[head * D + d];
  }
}
""",
    "append_tile",
    constants=("HEADS", "D", "EPS"),
    optional=("k_norm",),
    scratch_bytes=lambda op: 4 * int(op.param("D")),
    proved=True,
)
