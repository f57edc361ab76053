"""Minimum loads of all orders that begin with given tiles: how well a started walk can still end.

Under LRU, the cache after some tiles is a single state, so the search of ``exact.py`` can begin from it. OPT decides
with hindsight and has no such state in the middle of a walk. Under OPT, and on grids too large for exact search, the
answer is the best of a few ends: those of the named families, without the visited tiles, and the greedy one.

    4 x 4 tiles, LRU, capacity 5: 9 loads are possible, but after row 0 and then tile (3, 0) no fewer than 11
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from interlace.orders.astar import AStarSearch, Progress, StartState
from interlace.orders.exact import ExactResult, explain_too_large, find_best_order
from interlace.orders.families import list_families
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.remaining import bound_loads
from interlace.orders.replay import Group, find_loaded, find_lru_contents

_MAX_GREEDY = 1 << 8  # tiles; each step of the greedy end examines all open tiles


def find_completion(
    grid: PanelGrid,
    prefix: Sequence[Visit],
    capacity: int,
    cache: EvictionPolicy,
    *,
    seconds: float = 60.0,
    max_states: int | None = None,
    progress: Progress | None = None,
) -> ExactResult:
    """Return the minimum loads over all orders that begin with a walk, and such an order.

    Args:
        grid, capacity, cache, seconds, max_states, progress: as for ``exact.find_best_order``.
        prefix: visits of different tiles; if empty, the result is that of ``find_best_order``.

    Raises:
        OrderError: a tile is outside the grid, or visited twice.
        SearchError: as for ``find_best_order``.
    """
    if not prefix:
        return find_best_order(
            grid, capacity, cache, start=None, max_states=max_states, seconds=seconds, progress=progress
        )
    grid.check_capacity(capacity)
    grid.check_prefix(prefix)
    capacity = min(capacity, grid.units)
    walk, cost = find_known_end(grid, prefix, capacity, cache)
    so_far = _count_loads(grid, prefix, capacity, cache)
    if len(prefix) == grid.tiles:
        return ExactResult(cost, walk, True, cost, 0)
    least = max(so_far, bound_loads(grid, capacity, cost))
    if cost == least:
        return ExactResult(cost, walk, True, cost, 0)
    if cache is EvictionPolicy.OPT or explain_too_large(grid):
        why = explain_too_large(grid) or "a search under OPT begins with no tile"
        return ExactResult(cost, walk, False, least, 0, f"{why}, so the best of a few known ends answered")
    search = AStarSearch(grid, capacity, cache, cost, max_states, _replay_state(grid, prefix, capacity, so_far))
    stopped = search.run(seconds, progress)
    if search.at.goal[0] >= 0:
        walk = (*prefix, *search.rebuild_walk())
        cost = _count_loads(grid, walk, capacity, cache)
    bound = max(least, int(search.at.bound[0])) if stopped else cost
    return ExactResult(cost, walk, not stopped, bound, int(search.at.states[0]), stopped)


def find_known_end(
    grid: PanelGrid, prefix: Sequence[Visit], capacity: int, cache: EvictionPolicy
) -> tuple[tuple[Visit, ...], int]:
    """Return the best order among the families' ends and the greedy end of a walk, and its loads."""
    found = ((walk, _count_loads(grid, walk, capacity, cache)) for walk in iter_ends(grid, prefix, capacity))
    return min(found, key=lambda end: end[1])


def iter_ends(grid: PanelGrid, prefix: Sequence[Visit], capacity: int) -> Iterator[tuple[Visit, ...]]:
    """Yield orders that begin with a walk: each family's, in both directions, and the greedy one of a small grid."""
    seen = {(visit.row, visit.column) for visit in prefix}
    if grid.tiles <= _MAX_GREEDY:
        yield _extend_greedily(grid, prefix, capacity)
    for family in list_families(grid, capacity):
        walk = family.make_walk(grid)
        for rest in (walk, walk[::-1]):
            yield (*prefix, *(visit for visit in rest if (visit.row, visit.column) not in seen))


def _extend_greedily(grid: PanelGrid, begun: Sequence[Visit], capacity: int) -> tuple[Visit, ...]:
    """Extend a walk by the tile with the fewest loads under LRU; ties go to panels with the fewest open tiles."""
    walk = list(begun)
    open_tiles = dict.fromkeys(product(range(grid.rows), range(grid.columns)))
    for visit in begun:
        del open_tiles[visit.row, visit.column]
    groups: list[Group] = [pair for visit in walk for pair in grid.list_pairs(visit)]
    while open_tiles:
        rows, columns = [0] * grid.rows, [0] * grid.columns
        for row, column in open_tiles:
            rows[row] += 1
            columns[column] += 1
        held = find_lru_contents(groups, capacity)
        inside = {*held}
        before: list[Group] = [(unit,) for unit in reversed(held)]
        best, least = None, (2 * grid.chunks + 1, 0)
        for row, column in open_tiles:
            for column_first in (False, True):
                visit = Visit(row, column, column_first)
                pairs = grid.list_pairs(visit)
                absent = sum(unit not in inside for pair in pairs for unit in pair)
                if absent > least[0]:
                    continue
                missed = find_loaded([*before, *pairs], capacity, EvictionPolicy.LRU)[len(before) :] if absent else []
                score = (sum(map(len, missed)), rows[row] + columns[column])
                if score < least:
                    best, least = visit, score
        assert best is not None  # no tile loads more than all of its units
        walk.append(best)
        groups = [*before, *grid.list_pairs(best)]
        del open_tiles[best.row, best.column]
    return tuple(walk)


def _replay_state(grid: PanelGrid, begun: Sequence[Visit], capacity: int, so_far: int) -> StartState:
    """Return LRU's state after a walk, as in ``states.py``: -1 for units that no open tile needs, none at the end."""
    visited, rows, columns = 0, [grid.columns] * grid.rows, [grid.rows] * grid.columns
    for visit in begun:
        visited |= 1 << (visit.row * grid.columns + visit.column)
        rows[visit.row] -= 1
        columns[visit.column] -= 1
    still_open = [*rows, *columns]
    held = find_lru_contents([pair for visit in begun for pair in grid.list_pairs(visit)], capacity)
    units = [unit if still_open[unit // grid.chunks] else -1 for unit in held]
    while units and units[-1] < 0:
        units.pop()
    return StartState(visited, tuple(units), so_far)


def _count_loads(grid: PanelGrid, walk: Sequence[Visit], capacity: int, cache: EvictionPolicy) -> int:
    return sum(map(len, find_loaded([pair for visit in walk for pair in grid.list_pairs(visit)], capacity, cache)))
