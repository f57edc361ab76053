"""The Triton body of max-pooling: rows of a block are pixels, columns are channels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def max_pool2d_tile(
    tile,
    x,
    out,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pixel = tl.arange(0, BLOCK)
    row, column = tile.j * BP + pixel // Q, pixel % Q
    channel = tile.l * BN + tl.arange(0, BN)
    inside = (pixel < BP * Q) & (row < P)
    known = inside[:, None] & (channel < C)[None, :]
    of_image = x + tile.i.to(tl.int64) * (H * W * C)
    value = tl.full((BLOCK, BN), float("-inf"), tl.float32)
    for r in tl.static_range(R):
        for s in tl.static_range(S):
            # Pixels beyond the image count as the nearest one inside, which the window has, too.
            h = tl.minimum(tl.maximum(row * STRIDE_H - PAD_H + r, 0), H - 1)
            w = tl.minimum(tl.maximum(column * STRIDE_W - PAD_W + s, 0), W - 1)
            at = of_image + ((h * W + w) * C)[:, None] + channel[None, :]
            piece = tl.load(at, mask=known, other=0.0).to(tl.float32)
            value = tl.maximum(value, piece, propagate_nan=tl.PropagateNan.ALL)
    to = out + ((tile.i.to(tl.int64) * P + row) * Q + column)[:, None] * C + channel[None, :]
    tl.store(to, value.to(out.dtype.element_ty), mask=known)
