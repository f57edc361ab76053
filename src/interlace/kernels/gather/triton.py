"""The Triton body of gather."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_tile(tile, x, token, out, T, H, R, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)
    column = tile.j * BN + tl.arange(0, BN)
    source = tl.load(token + row, mask=row < R, other=-1)
    there = (source >= 0) & (source < T)
    inside = (column < H)[None, :]
    at = tl.where(there, source, 0).to(tl.int64)[:, None] * H + column[None, :]
    value = tl.load(x + at, mask=there[:, None] & inside, other=0.0)
    tl.store(out + row.to(tl.int64)[:, None] * H + column[None, :], value, mask=(row < R)[:, None] & inside)
