"""The Triton body of merge."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow


@triton.jit
def merge_tile(tile, y, place, weights, out, T, H, R, CHOSEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)
    column = tile.j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.static_range(CHOSEN):
        at = tl.load(place + row * CHOSEN + k, mask=row < T, other=-1)
        there = (at >= 0) & (at < R)
        weight = tl.load(weights + row * CHOSEN + k, mask=there, other=0.0)
        source = tl.where(there, at, 0).to(tl.int64)[:, None] * H + column[None, :]
        made = tl.load(y + source, mask=there[:, None] & (column < H)[None, :], other=0.0).to(tl.float32)
        acc += weight[:, None] * made
    inside = (row < T)[:, None] & (column < H)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * H + column[None, :], narrow(acc, out.dtype.element_ty), mask=inside)
