"""Beam search: good orders of grids that are too large for exact search, under LRU.

All orders of the first t tiles compete on their loads so far plus an estimate of the loads to come. The best of them
are extended to tile t + 1. In addition, the best of the named families are walked, each in its own order, and are never
dropped. The result is therefore never worse than the best family. Where it is better, it departs from a family's order
at a point where that saves loads. Example, loads of 8 x 8 tiles, LRU:

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
from interlace.orders.families import Family, list_families
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads
from interlace.orders.walkers import (
    MAX_PANELS,
    TRIES,
    Scratch,
    SearchSize,
    Walkers,
    Words,
    estimate,
    hash_state,
    list_tries,
    make_walkers,
    touch_all,
    visit,
)

_SEEDS = 8
_WIDEST, _NARROWEST = 256, 4
_MOVES_PER_STEP = 4  # moves examined for each one taken
_MAX_WORK = 6e9  # units and tiles examined; about ten seconds
_MAX_TOUCHES = 1 << 14


@dataclass(frozen=True)
class BeamResult:
    """Best order found.

    Attributes:
        loads: loads of the order.
        walk: visits of the order.
        seed: family whose order it follows longest.
        followed: number of tiles for which it follows that family.
        is_timed_out: True if the time was up before the search ended; this is then the best family.
    """

    loads: int
    walk: tuple[Visit, ...]
    seed: Family
    followed: int
    is_timed_out: bool = False


def check_size(grid: PanelGrid) -> None:
    """Raise SearchError for a grid that is too large for every search."""
    if max(grid.rows, grid.columns) > MAX_PANELS or grid.tiles * grid.chunks > _MAX_TOUCHES:
        raise SearchError(
            f"{grid.rows} x {grid.columns} tiles of {grid.chunks} chunks are too many for a search, which takes "
            f"{MAX_PANELS} rows, {MAX_PANELS} columns and {_MAX_TOUCHES} chunks of tiles; "
            "search a smaller grid at the same capacity, since good orders repeat"
        )


def search_beam(
    grid: PanelGrid, capacity: int, cache: EvictionPolicy = EvictionPolicy.LRU, seconds: float = inf
) -> BeamResult:
    """Return an order that costs no more than any of ``list_families(grid, capacity)``; deterministic if time suffices.

    The number of competing orders follows from the size of the grid, so that a search takes about ten seconds at most.
    Under OPT, the orders compete under LRU, once in this cache and once in one that holds a unit more (LRU spends a
    unit on data that stream through it). The result is the best under OPT of these orders and the families.

    Args:
        grid: at most 64 x 64 tiles.
        capacity: units that the cache holds, at least 2.
        cache: eviction policy.
        seconds: time after which the best family is returned. Compilation on first use is not counted.

    Raises:
        SearchError: the grid is too large or the capacity too small.
    """
    begun = monotonic()
    grid.check_capacity(capacity)
    check_size(grid)
    capacity = min(capacity, grid.units)
    seeds = []
    for family in list_families(grid, capacity):
        walk = family.make_walk(grid)
        seeds.append(BeamResult(count_loads(grid, walk, capacity, cache), walk, family, grid.tiles))
    seeds.sort(key=lambda found: found.loads)
    if seeds[0].loads == grid.units:
        return seeds[0]
    walked = []
    for units in (capacity,) if cache is EvictionPolicy.LRU else (capacity, capacity + 1):
        found = _run_beam(grid, units, seeds[:_SEEDS], seconds - (monotonic() - begun))
        if found is None:
            return replace(seeds[0], is_timed_out=True)
        walked.append(found)
    if cache is EvictionPolicy.LRU:
        return walked[0]
    under_opt = [replace(found, loads=count_loads(grid, found.walk, capacity, cache)) for found in walked]
    return min([*seeds, *under_opt], key=lambda found: found.loads)


def _run_beam(grid: PanelGrid, capacity: int, seeds: Sequence[BeamResult], seconds: float) -> BeamResult | None:
    """Return the best order under LRU, or None if the search takes longer than ``seconds``."""
    size = SearchSize(grid.rows, grid.columns, grid.chunks, capacity)
    tiles = np.array([[v.row * grid.columns + v.column for v in seed.walk] for seed in seeds], np.int64)
    ways = np.array([[v.column_first + 2 * v.backwards for v in seed.walk] for seed in seeds], np.int64)
    of_one = TRIES * (4 if grid.chunks > 1 else 2) * (capacity + 64) * grid.chunks + _MOVES_PER_STEP * 4 * grid.tiles
    width = max(_NARROWEST, min(_WIDEST, int(_MAX_WORK / (grid.tiles * of_one)) - len(seeds)))
    count = len(seeds) + width
    walkers, following = make_walkers(size, count), make_walkers(size, count)
    most = count * TRIES * 4
    moves = _CandidateMoves(np.zeros(most), np.zeros(most, np.int64), np.zeros(most, np.int64))
    parents = np.zeros((grid.tiles, count), np.int64)
    steps = np.zeros((grid.tiles, count), np.int64)
    marks, scratch = np.empty(count, np.uint64), Scratch.allocate(size)
    walking = len(seeds)
    for done in range(grid.tiles):
        found = _score_moves(size, walkers, walking, moves, scratch)
        order = np.argsort(moves.score[:found], kind="stable")[: _MOVES_PER_STEP * count]
        own = tiles[:, done] * 4 + ways[:, done]
        walking = _advance(size, walkers, following, own, moves, order, parents[done], steps[done], marks, scratch)
        following.followed[: len(seeds)] = done + 1
        walkers, following = following, walkers
        if done == 0:
            end = monotonic() + seconds  # after the first step, which compiles
        elif monotonic() > end:
            return None
    best = at = int(np.argmin(walkers.cost[:walking]))
    walk = []
    for done in reversed(range(grid.tiles)):
        tile, way = divmod(int(steps[done, at]), 4)
        walk.append(Visit(*divmod(tile, grid.columns), bool(way % 2), bool(way // 2)))
        at = int(parents[done, at])
    seed = seeds[int(walkers.seed[best])].seed
    return BeamResult(int(walkers.cost[best]), tuple(reversed(walk)), seed, int(walkers.followed[best]))


class _CandidateMoves(NamedTuple):
    """Candidate moves of all walkers: score (lower is better), walker, and tile * 4 + way."""

    score: NDArray[np.float64]
    walker: Ints
    step: Ints


@cached_njit(allocates=False)
def _score_moves(size: SearchSize, walkers: Walkers, walking: int, moves: _CandidateMoves, scratch: Scratch) -> int:
    """Write the candidate moves of each walker; return their number."""
    tiles, units = scratch.tiles, scratch.units
    found = 0
    for walker in range(walking):
        for i in range(list_tries(size, walkers, walker, scratch)):
            for way in range(2 if size.chunks == 1 else 4):
                held, loads = touch_all(size, walkers, walker, tiles[i], way, units)
                to_come = estimate(size, walkers, walker, tiles[i], units, held, scratch.columns_held)
                moves.score[found] = walkers.cost[walker] + loads + to_come
                moves.walker[found] = walker
                moves.step[found] = tiles[i] * 4 + way
                found += 1
    return found


@cached_njit(allocates=False)
def _advance(
    size: SearchSize,
    walkers: Walkers,
    following: Walkers,
    own: Ints,
    moves: _CandidateMoves,
    order: Ints,
    parents: Ints,
    steps: Ints,
    marks: Words,
    scratch: Scratch,
) -> int:
    """Move the families by their ``own`` steps, then the best distinct other moves; return the number of walkers.

    ``marks`` is scratch space for a fingerprint of each walker.
    """
    units = scratch.units
    for seed in range(len(own)):
        parents[seed], steps[seed] = seed, own[seed]
        visit(size, walkers, seed, own[seed] // 4, own[seed] % 4, following, seed, units)
    walking = len(own)
    for move in order:
        if walking == len(steps):
            break
        walker, tile, way = moves.walker[move], moves.step[move] // 4, moves.step[move] % 4
        held, _ = touch_all(size, walkers, walker, tile, way, units)
        marks[walking] = hash_state(size, walkers, walker, tile, held, scratch)
        twin = len(own)
        while marks[twin] != marks[walking]:
            twin += 1
        if twin == walking:
            parents[walking], steps[walking] = walker, moves.step[move]
            visit(size, walkers, walker, tile, way, following, walking, units)
            walking += 1
    return walking
