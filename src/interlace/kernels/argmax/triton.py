"""The Triton bodies of argmax. Rows of NaN also yield a valid index, so that readers stay inside their table."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def most_tile(tile, x, best, at, N, BN: tl.constexpr, TILES):
    column = tile.j * BN + tl.arange(0, BN)
    value = tl.load(x + tile.i.to(tl.int64) * N + column, mask=column < N, other=float("-inf")).to(tl.float32)
    largest = tl.max(value)
    place = tl.minimum(tl.min(tl.where(value == largest, column, N)), N - 1)
    tl.store(best + tile.i * TILES + tile.j, largest)
    tl.store(at + tile.i * TILES + tile.j, place)


@triton.jit
def first_tile(tile, best, at, out, TILES, BN: tl.constexpr):
    column = tl.arange(0, BN)
    inside = column < TILES
    value = tl.load(best + tile.i * TILES + column, mask=inside, other=float("-inf"))
    place = tl.load(at + tile.i * TILES + column, mask=inside, other=0)
    first = tl.min(tl.where(inside & (value == tl.max(value)), column, TILES))
    # Columns of tiles ascend, so the first tile has the first of equal numbers.
    tl.store(out + tile.i, tl.sum(tl.where(column == tl.minimum(first, TILES - 1), place, 0)))
