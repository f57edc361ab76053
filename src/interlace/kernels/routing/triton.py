"""The Triton bodies of routing. For any table contents, they access only what an op declares."""

from __future__ import annotations

import triton
import triton.language as tl

_PAIRS = tl.constexpr(1024)  # pairs that a tile of fill examines at a time


@triton.jit
def choose(
    logits,
    row,
    T,
    E: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
):
    """Return the experts and weights of the tokens ``row``, and how many tokens each expert gets."""
    column = tl.arange(0, BE)
    known = (row < T)[:, None] & (column < E)[None, :]
    value = tl.load(logits + row.to(tl.int64)[:, None] * E + column[None, :], mask=known, other=float("-inf"))
    left = known
    which = tl.arange(0, BC)[None, :]
    chosen = tl.zeros((BLOCK, BC), tl.int32)
    best = tl.full((BLOCK, BC), float("-inf"), tl.float32)
    count = tl.zeros((BE,), tl.int32)
    for k in tl.static_range(CHOSEN):
        most = tl.max(tl.where(left, value, float("-inf")), 1)
        at = tl.min(tl.where(left & (value == most[:, None]), column[None, :], E), 1)
        at = tl.minimum(at, E - 1)  # for NaN
        taken = column[None, :] == at[:, None]
        left = left & (taken == 0)
        count += tl.sum((taken & (row < T)[:, None]).to(tl.int32), 0)
        chosen = tl.where(which == k, at[:, None], chosen)
        best = tl.where(which == k, most[:, None], best)
    share = tl.where(which < CHOSEN, tl.exp(best - tl.max(best, 1)[:, None]), 0.0)
    return chosen, share / tl.sum(share, 1)[:, None], count


@triton.jit
def route_tile(
    tile,
    logits,
    experts,
    weights,
    counts,
    T,
    E: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
):
    row = tile.i * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BE)
    which = tl.arange(0, BC)[None, :]
    chosen, share, count = choose(logits, row, T, E, CHOSEN, BLOCK, BE, BC)
    place = row.to(tl.int64)[:, None] * CHOSEN + which
    inside = (row < T)[:, None] & (which < CHOSEN)
    tl.store(experts + place, chosen, mask=inside)
    tl.store(weights + place, share, mask=inside)
    tl.store(counts + tile.i * E + column, count, mask=column < E)


@triton.jit
def _count_pairs(counts, before, E: tl.constexpr, BLOCKS, BLOCK: tl.constexpr, BE: tl.constexpr):
    """Count the pairs of each expert, and those in the first ``before`` blocks of tokens."""
    column = tl.arange(0, BE)[None, :]
    total = tl.zeros((BE,), tl.int32)
    earlier = tl.zeros((BE,), tl.int32)
    for first in range(0, BLOCKS, BLOCK):
        block = first + tl.arange(0, BLOCK)[:, None]
        count = tl.load(counts + block * E + column, mask=(block < BLOCKS) & (column < E), other=0)
        total += tl.sum(count, 0)
        earlier += tl.sum(tl.where(block < before, count, 0), 0)
    return total, earlier


@triton.jit
def place_tile(
    tile,
    experts,
    counts,
    place,
    T,
    E: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCKS,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BE: tl.constexpr,
):
    total, earlier = _count_pairs(counts, tile.i, E, BLOCKS, BLOCK, BE)
    tiles = (total + ROWS - 1) // ROWS
    first = (tl.cumsum(tiles, 0) - tiles) * ROWS + earlier
    row = tile.i * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BE)[None, :]
    mine = tl.zeros((BLOCK, BE), tl.int32)
    for k in tl.static_range(CHOSEN):
        expert = tl.load(experts + row * CHOSEN + k, mask=row < T, other=-1)
        mine += ((expert[:, None] == column) & (column < E)).to(tl.int32)
    following = first[None, :] + tl.cumsum(mine, 0) - mine
    for k in tl.static_range(CHOSEN):
        expert = tl.load(experts + row * CHOSEN + k, mask=row < T, other=-1)
        this = ((expert[:, None] == column) & (column < E)).to(tl.int32)
        at = tl.where((expert >= 0) & (expert < E), tl.sum(this * following, 1), -1)
        tl.store(place + row * CHOSEN + k, at, mask=row < T)
        following += this


@triton.jit
def fill_tile(
    tile,
    place,
    counts,
    token,
    owner,
    T,
    E: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCKS,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BE: tl.constexpr,
):
    total, _ = _count_pairs(counts, 0, E, BLOCKS, BLOCK, BE)
    tiles = (total + ROWS - 1) // ROWS
    end = tl.cumsum(tiles, 0)
    column = tl.arange(0, BE)
    owns = (column < E) & (end - tiles <= tile.i) & (tile.i < end)
    tl.store(owner + tile.i, tl.max(tl.where(owns, column, -1), 0))
    row = tl.arange(0, ROWS)
    low = tile.i * ROWS
    tl.store(token + low + row, row * 0 - 1)
    tl.debug_barrier()  # rows that hold a pair are written again, by other threads
    for first in range(0, T * CHOSEN, _PAIRS):
        pair = first + tl.arange(0, _PAIRS)
        at = tl.load(place + pair, mask=pair < T * CHOSEN, other=-1) - low
        tl.store(token + low + at, pair // CHOSEN, mask=(at >= 0) & (at < ROWS))
