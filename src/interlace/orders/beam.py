"""Beam search: good orders of grids that are too large to be searched exactly, under LRU.

All orders of the first t tiles compete on what they have loaded and what they will probably still load; the
best of them go on to tile t + 1. Beside them the best of the named families walk, each along its own order
and never dropped. So the result is never worse than the best family, and where it is better it leaves a
family's order where that pays. Example, loads of 8 x 8 tiles, LRU:

    capacity in panels      3    4    5    6    7    8    9
    best family            65   37   30   23   23   23   22
    beam                   37   35   28   22   22   22   21
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import SearchError
from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.orders.families import Family, families
from interlace.orders.panels import Cache, PanelGrid, Visit
from interlace.orders.replay import loads
from interlace.orders.walkers import (
    MOST_PANELS,
    TRIES,
    Size,
    Walkers,
    at_start,
    estimate,
    fingerprint,
    touch_all,
    tries,
    visit,
)

_SEEDS = 8
_WIDEST, _NARROWEST = 256, 4
_LOOKS = 4  # moves looked at for each that is taken
_WORK = 6e9  # units and tiles looked at; about ten seconds
_MOST_TOUCHES = 1 << 14


@dataclass(frozen=True)
class Found:
    """The best order found.

    Attributes:
        loads: what it costs.
        walk: its visits.
        seed: the family whose order it follows longest.
        followed: for how many tiles.
        late: time was up before the search was over, so that this is the best family.
    """

    loads: int
    walk: tuple[Visit, ...]
    seed: Family
    followed: int
    late: bool = False


def check_size(grid: PanelGrid) -> None:
    """Raise SearchError for a grid that no search here takes."""
    if max(grid.rows, grid.columns) > MOST_PANELS or grid.tiles * grid.chunks > _MOST_TOUCHES:
        raise SearchError(
            f"{grid.rows} x {grid.columns} tiles of {grid.chunks} chunks are too many for a search, which takes "
            f"{MOST_PANELS} rows, {MOST_PANELS} columns and {_MOST_TOUCHES} chunks of tiles; "
            "search a smaller grid at the same capacity, since good orders repeat"
        )


def beam(grid: PanelGrid, capacity: int, cache: Cache = Cache.LRU, seconds: float = inf) -> Found:
    """An order that costs no more than any of ``families(grid, capacity)``, the same one each time if time suffices.

    How many orders compete follows from the size of the grid, so that it takes about ten seconds at most.
    Under OPT the orders compete under LRU, once in this cache and once in one that holds a unit more (LRU
    spends a unit on what streams through it), and the best under OPT, of them and the families, is returned.

    Args:
        grid: at most 64 x 64 tiles.
        capacity: units that the cache holds, at least 2.
        cache: what it evicts.
        seconds: answer with the best family after this time. What the first use compiles is not counted.

    Raises:
        SearchError: the grid is too large or the capacity too small.
    """
    begun = monotonic()
    grid.check_capacity(capacity)
    check_size(grid)
    capacity = min(capacity, grid.units)
    seeds = []
    for family in families(grid, capacity):
        walk = family.walk(grid)
        seeds.append(Found(loads(grid, walk, capacity, cache), walk, family, grid.tiles))
    seeds.sort(key=lambda found: found.loads)
    if seeds[0].loads == grid.units:
        return seeds[0]
    walked = []
    for units in (capacity,) if cache is Cache.LRU else (capacity, capacity + 1):
        found = _beam(grid, units, seeds[:_SEEDS], seconds - (monotonic() - begun))
        if found is None:
            return replace(seeds[0], late=True)
        walked.append(found)
    if cache is Cache.LRU:
        return walked[0]
    under_opt = [replace(found, loads=loads(grid, found.walk, capacity, cache)) for found in walked]
    return min([*seeds, *under_opt], key=lambda found: found.loads)


def _beam(grid: PanelGrid, capacity: int, seeds: Sequence[Found], seconds: float) -> Found | None:
    """The best order under LRU, or None if that takes longer than some seconds."""
    size = Size(grid.rows, grid.columns, grid.chunks, capacity)
    tiles = np.array([[v.row * grid.columns + v.column for v in seed.walk] for seed in seeds], np.int64)
    ways = np.array([[v.column_first + 2 * v.backwards for v in seed.walk] for seed in seeds], np.int64)
    of_one = TRIES * (4 if grid.chunks > 1 else 2) * (capacity + 64) * grid.chunks + _LOOKS * 4 * grid.tiles
    width = max(_NARROWEST, min(_WIDEST, int(_WORK / (grid.tiles * of_one)) - len(seeds)))
    count = len(seeds) + width
    walkers, following = at_start(size, count), at_start(size, count)
    most = count * TRIES * 4
    moves = _Moves(np.zeros(most), np.zeros(most, np.int64), np.zeros(most, np.int64))
    parents = np.zeros((grid.tiles, count), np.int64)
    steps = np.zeros((grid.tiles, count), np.int64)
    walking = len(seeds)
    for done in range(grid.tiles):
        found = _look(size, walkers, walking, moves)
        order = np.argsort(moves.score[:found], kind="stable")[: _LOOKS * count]
        own = tiles[:, done] * 4 + ways[:, done]
        walking = _advance(size, walkers, following, own, moves, order, parents[done], steps[done])
        following.followed[: len(seeds)] = done + 1
        walkers, following = following, walkers
        if done == 0:
            end = monotonic() + seconds  # from here, since the first step compiles
        elif monotonic() > end:
            return None
    best = at = int(np.argmin(walkers.cost[:walking]))
    walk = []
    for done in reversed(range(grid.tiles)):
        tile, way = divmod(int(steps[done, at]), 4)
        walk.append(Visit(*divmod(tile, grid.columns), bool(way % 2), bool(way // 2)))
        at = int(parents[done, at])
    seed = seeds[int(walkers.seed[best])].seed
    return Found(int(walkers.cost[best]), tuple(reversed(walk)), seed, int(walkers.followed[best]))


class _Moves(NamedTuple):
    """What walkers could do next: how it scores (low is good), whose move it is, and tile * 4 + way."""

    score: NDArray[np.float64]
    walker: Ints
    step: Ints


@cached_njit
def _look(size: Size, walkers: Walkers, walking: int, moves: _Moves) -> int:
    """Write what each walker could do next; returns how much that is."""
    tiles, units = np.empty(TRIES, np.int64), np.empty(size.capacity, np.int64)
    found = 0
    for walker in range(walking):
        for i in range(tries(size, walkers, walker, tiles)):
            for way in range(2 if size.chunks == 1 else 4):
                held, loads = touch_all(size, walkers, walker, tiles[i], way, units)
                to_come = estimate(size, walkers, walker, tiles[i], units, held)
                moves.score[found] = walkers.cost[walker] + loads + to_come
                moves.walker[found] = walker
                moves.step[found] = tiles[i] * 4 + way
                found += 1
    return found


@cached_njit
def _advance(
    size: Size, walkers: Walkers, following: Walkers, own: Ints, moves: _Moves, order: Ints, parents: Ints, steps: Ints
) -> int:
    """Move the families by their ``own`` steps, then the best others that differ; returns how many walk."""
    units = np.empty(size.capacity, np.int64)
    for seed in range(len(own)):
        parents[seed], steps[seed] = seed, own[seed]
        visit(size, walkers, seed, own[seed] // 4, own[seed] % 4, following, seed, units)
    marks = np.empty(len(steps), np.uint64)
    walking = len(own)
    for move in order:
        if walking == len(steps):
            break
        walker, tile, way = moves.walker[move], moves.step[move] // 4, moves.step[move] % 4
        held, _ = touch_all(size, walkers, walker, tile, way, units)
        marks[walking] = fingerprint(size, walkers, walker, tile, units, held)
        twin = len(own)
        while marks[twin] != marks[walking]:
            twin += 1
        if twin == walking:
            parents[walking], steps[walking] = walker, moves.step[move]
            visit(size, walkers, walker, tile, way, following, walking, units)
            walking += 1
    return walking
