"""The Triton body of softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow


@triton.jit
def softmax_tile(tile, x, out, M, N: tl.constexpr, EXPONENT, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tl.arange(0, BN)[None, :]
    # Rows beyond the last are computed as the last one, so that all results are numbers.
    at = tl.minimum(row, M - 1).to(tl.int64) * N + column
    most = tl.full((BM, BN), float("-inf"), tl.float32)
    for first in range(0, N, BN):
        value = tl.load(x + at + first, mask=first + column < N, other=float("-inf")).to(tl.float32)
        most = tl.maximum(most, value)
    largest = tl.max(most, 1)[:, None]
    sums = tl.zeros((BM, BN), tl.float32)
    for first in range(0, N, BN):
        value = tl.load(x + at + first, mask=first + column < N, other=float("-inf")).to(tl.float32)
        sums += tl.exp2((value - largest) * EXPONENT)
    total = tl.sum(sums, 1)[:, None]
    for first in range(0, N, BN):
        within = first + column < N
        value = tl.load(x + at + first, mask=within, other=float("-inf")).to(tl.float32)
        share = tl.exp2((value - largest) * EXPONENT) / total
        tl.store(out + at + first, narrow(share, out.dtype.element_ty), mask=within & (row < M))
