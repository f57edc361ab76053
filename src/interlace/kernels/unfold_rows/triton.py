"""The Triton body of unfolding: rows of a block are output pixels, columns are taps by channels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unfold_rows_tile(
    tile,
    x,
    out,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    Q: tl.constexpr,
    TAPS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    DILATION: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BP: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    pixel, k = tl.arange(0, BLOCK), tl.arange(0, DEPTH)
    row, q = tile.j * BP + pixel // Q, pixel % Q
    inside = (pixel < BP * Q) & (row < H)
    column = (q * STRIDE - PAD)[:, None] + (k // C * DILATION)[None, :]
    known = inside[:, None] & (k < TAPS * C)[None, :] & (column >= 0) & (column < W)
    if CHANNELS_LAST:
        at = (row[:, None] * W + column) * C + (k % C)[None, :]
    else:
        at = ((k % C)[None, :] * H + row[:, None]) * W + column
    value = tl.load(x + tile.i.to(tl.int64) * (H * W * C) + at, mask=known, other=0.0)
    to = out + ((tile.i.to(tl.int64) * H + row) * Q + q)[:, None] * WIDTH + k[None, :]
    tl.store(to, value, mask=inside[:, None] & (k < WIDTH)[None, :])
