"""The Triton body of average pooling: rows of a block are pixels, columns are channels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def avg_pool2d_tile(
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
    BP: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pixel = tl.arange(0, BLOCK)
    row, column = tile.j * BP + pixel // Q, pixel % Q
    channel = tile.l * BN + tl.arange(0, BN)
    inside = ((pixel < BP * Q) & (row < P))[:, None] & (channel < C)[None, :]
    of_image = x + tile.i.to(tl.int64) * (H * W * C)
    total = tl.zeros((BLOCK, BN), tl.float32)
    for r in range(R):
        for s in range(S):
            at = ((row * STRIDE_H + r) * W + column * STRIDE_W + s) * C
            total += tl.load(of_image + at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    to = out + ((tile.i.to(tl.int64) * P + row) * Q + column)[:, None] * C + channel[None, :]
    tl.store(to, (total / (R * S)).to(out.dtype.element_ty), mask=inside)
