"""The Triton body of assign."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.routing.triton import choose


@triton.jit
def assign_tile(
    tile,
    logits,
    weights,
    place,
    token,
    owner,
    T,
    E: tl.constexpr,
    CHOSEN: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
    BT: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    which = tl.arange(0, BC)[None, :]
    column = tl.arange(0, BE)[None, :]
    chosen, share, count = choose(logits, row, T, E, CHOSEN, BLOCK, BE, BC)
    at = row[:, None] * CHOSEN + which
    tl.store(weights + at, share, mask=(row < T)[:, None] & (which < CHOSEN))
    tiles = (count + ROWS - 1) // ROWS
    end = tl.cumsum(tiles, 0)
    number = tl.arange(0, BT)
    owns = (column < E) & ((end - tiles)[None, :] <= number[:, None]) & (number[:, None] < end[None, :])
    tl.store(owner + number, tl.max(tl.where(owns, column, -1), 1), mask=number < TILES)
    for first in tl.static_range(ROWS):
        tl.store(token + number * ROWS + first, number * 0 - 1, mask=number < TILES)
    tl.debug_barrier()  # rows that hold a pair are written again, by other threads
    mine = tl.zeros((BLOCK, BE), tl.int32)
    for k in tl.static_range(CHOSEN):
        expert = tl.sum(tl.where(which == k, chosen, 0), 1)
        mine += ((expert[:, None] == column) & (row < T)[:, None]).to(tl.int32)
    following = ((end - tiles) * ROWS)[None, :] + tl.cumsum(mine, 0) - mine
    for k in tl.static_range(CHOSEN):
        expert = tl.sum(tl.where(which == k, chosen, 0), 1)
        there = tl.sum(tl.where(expert[:, None] == column, following, 0), 1)
        tl.store(place + row * CHOSEN + k, there, mask=row < T)
        tl.store(token + there, row, mask=row < T)
