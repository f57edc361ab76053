"""The Triton body of embedding."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.squares import sum_squares


@triton.jit
def embedding_tile(tile, tokens, table, scale, out, scaled, squares, V, H, BN: tl.constexpr, SQUARED: tl.constexpr):
    row = tl.minimum(tl.maximum(tl.load(tokens + tile.i), 0), V - 1).to(tl.int64)
    column = tile.j * BN + tl.arange(0, BN)
    inside = column < H
    at = tile.i.to(tl.int64) * H + column
    value = tl.load(table + row * H + column, mask=inside)
    tl.store(out + at, value, mask=inside)
    if scale is not None:
        SUMS: tl.constexpr = BN // SQUARED
        value = tl.where(inside, value.to(tl.float32), 0.0)
        gain = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(scaled + at, narrow(value * gain, scaled.dtype.element_ty), mask=inside)
        block = tile.j * SUMS + tl.arange(0, SUMS)[None, :]
        of_row = tl.cdiv(H, SQUARED)
        sums = sum_squares(value[None, :], 1, BN, SQUARED)
        tl.store(squares + tile.i.to(tl.int64) * of_row + block, sums, mask=block < of_row)
