"""The Triton body of RMS normalisation."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow


@triton.jit
def rms_norm_tile(tile, x, weight, out, M, N: tl.constexpr, EPS, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    inside = row < M
    at = row.to(tl.int64) * N + tl.arange(0, BN)[None, :]
    squares = tl.zeros((BM, BN), tl.float32)
    for first in range(0, N, BN):
        within = first + tl.arange(0, BN)[None, :] < N
        value = tl.load(x + at + first, mask=inside & within, other=0.0).to(tl.float32)
        squares += value * value
    scale = (1.0 / tl.sqrt(tl.sum(squares, 1) / N + EPS))[:, None]
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)[None, :]
        within = inside & (column < N)
        value = tl.load(x + at + first, mask=within, other=0.0).to(tl.float32)
        gain = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
        tl.store(out + at + first, narrow(value * scale * gain, out.dtype.element_ty), mask=within)
