"""The Triton body of copy."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_tile(tile, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    at = row.to(tl.int64) * N + column
    tl.store(y + at, tl.load(x + at, mask=inside), mask=inside)
