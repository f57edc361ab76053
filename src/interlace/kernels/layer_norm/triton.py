"""The Triton body of layer normalisation."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow


@triton.jit
def layer_norm_tile(tile, x, weight, bias, out, M, N: tl.constexpr, EPS, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    inside = row < M
    at = row.to(tl.int64) * N + tl.arange(0, BN)[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for first in range(0, N, BN):
        within = first + tl.arange(0, BN)[None, :] < N
        sums += tl.load(x + at + first, mask=inside & within, other=0.0).to(tl.float32)
    mean = (tl.sum(sums, 1) / N)[:, None]
    squares = tl.zeros((BM, BN), tl.float32)
    for first in range(0, N, BN):
        within = first + tl.arange(0, BN)[None, :] < N
        off = tl.load(x + at + first, mask=inside & within, other=0.0).to(tl.float32) - mean
        squares += tl.where(within, off * off, 0.0)
    scale = (1.0 / tl.sqrt(tl.sum(squares, 1) / N + EPS))[:, None]
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)[None, :]
        within = inside & (column < N)
        off = tl.load(x + at + first, mask=within, other=0.0).to(tl.float32) - mean
        gain = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
        tl.store(out + at + first, narrow(off * scale * gain + shift, out.dtype.element_ty), mask=within)
