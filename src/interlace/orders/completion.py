"""Minimum loads of all orders that begin with given tiles: how well a started walk can still end.

Under LRU, the cache after some tiles is a single state, so the search of ``exact.py`` can begin from it. OPT decides
with hindsight and has no such state in the middle of a walk. Under OPT, and on grids too large for exact search, the
answer is the best of a few ends: those of the named families, without the visited tiles, and the greedy one.

    4 x 4 tiles, LRU, capacity 5: 9 loads are possible, but after row 0 and then tile (3, 0) no fewer than 11
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from interlace.orders.astar import Begun, Progress, Search
from interlace.orders.exact import Minimum, best_order, too_large
from interlace.orders.families import families
from interlace.orders.panels import Cache, PanelGrid, Visit
from interlace.orders.remaining import from_scratch
from interlace.orders.replay import Group, held_by_lru, loaded

_MOST_GREEDY = 1 << 8  # tiles; each step of the greedy end examines all open tiles


def completion(
    grid: PanelGrid,
    begun: Sequence[Visit],
    capacity: int,
    cache: Cache,
    *,
    seconds: float = 60.0,
    max_states: int | None = None,
    progress: Progress | None = None,
) -> Minimum:
    """Return the minimum loads over all orders that begin with a walk, and such an order.

    Args:
        grid, capacity, cache, seconds, max_states, progress: as for ``exact.best_order``.
        begun: visits of different tiles; if empty, the result is that of ``best_order``.

    Raises:
        OrderError: a tile is outside the grid, or visited twice.
        SearchError: as for ``best_order``.
    """
    if not begun:
        return best_order(grid, capacity, cache, start=None, max_states=max_states, seconds=seconds, progress=progress)
    grid.check_capacity(capacity)
    grid.check_begun(begun)
    capacity = min(capacity, grid.units)
    walk, cost = known_end(grid, begun, capacity, cache)
    so_far = _loads(grid, begun, capacity, cache)
    if len(begun) == grid.tiles:
        return Minimum(cost, walk, True, cost, 0)
    least = max(so_far, from_scratch(grid, capacity, cost))
    if cost == least:
        return Minimum(cost, walk, True, cost, 0)
    if cache is Cache.OPT or too_large(grid):
        why = too_large(grid) or "a search under OPT begins with no tile"
        return Minimum(cost, walk, False, least, 0, f"{why}, so the best of a few known ends answered")
    search = Search(grid, capacity, cache, cost, max_states, _state(grid, begun, capacity, so_far))
    stopped = search.run(seconds, progress)
    if search.at.goal[0] >= 0:
        walk = (*begun, *search.walk())
        cost = _loads(grid, walk, capacity, cache)
    bound = max(least, int(search.at.bound[0])) if stopped else cost
    return Minimum(cost, walk, not stopped, bound, int(search.at.states[0]), stopped)


def known_end(grid: PanelGrid, begun: Sequence[Visit], capacity: int, cache: Cache) -> tuple[tuple[Visit, ...], int]:
    """Return the best order among the families' ends and the greedy end of a walk, and its loads."""
    found = ((walk, _loads(grid, walk, capacity, cache)) for walk in ends(grid, begun, capacity))
    return min(found, key=lambda end: end[1])


def ends(grid: PanelGrid, begun: Sequence[Visit], capacity: int) -> Iterator[tuple[Visit, ...]]:
    """Yield orders that begin with a walk: each family's, in both directions, and the greedy one of a small grid."""
    seen = {(visit.row, visit.column) for visit in begun}
    if grid.tiles <= _MOST_GREEDY:
        yield _greedy(grid, begun, capacity)
    for family in families(grid, capacity):
        walk = family.walk(grid)
        for rest in (walk, walk[::-1]):
            yield (*begun, *(visit for visit in rest if (visit.row, visit.column) not in seen))


def _greedy(grid: PanelGrid, begun: Sequence[Visit], capacity: int) -> tuple[Visit, ...]:
    """Extend a walk by the tile with the fewest loads under LRU; ties go to panels with the fewest open tiles."""
    walk = list(begun)
    open_tiles = dict.fromkeys(product(range(grid.rows), range(grid.columns)))
    for visit in begun:
        del open_tiles[visit.row, visit.column]
    groups: list[Group] = [pair for visit in walk for pair in grid.pairs(visit)]
    while open_tiles:
        rows, columns = [0] * grid.rows, [0] * grid.columns
        for row, column in open_tiles:
            rows[row] += 1
            columns[column] += 1
        held = held_by_lru(groups, capacity)
        inside = {*held}
        before: list[Group] = [(unit,) for unit in reversed(held)]
        best, least = None, (2 * grid.chunks + 1, 0)
        for row, column in open_tiles:
            for column_first in (False, True):
                visit = Visit(row, column, column_first)
                pairs = grid.pairs(visit)
                absent = sum(unit not in inside for pair in pairs for unit in pair)
                if absent > least[0]:
                    continue
                missed = loaded([*before, *pairs], capacity, Cache.LRU)[len(before) :] if absent else []
                score = (sum(map(len, missed)), rows[row] + columns[column])
                if score < least:
                    best, least = visit, score
        assert best is not None  # no tile loads more than all of its units
        walk.append(best)
        groups = [*before, *grid.pairs(best)]
        del open_tiles[best.row, best.column]
    return tuple(walk)


def _state(grid: PanelGrid, begun: Sequence[Visit], capacity: int, so_far: int) -> Begun:
    """Return LRU's state after a walk, as in ``states.py``: -1 for units that no open tile needs, none at the end."""
    visited, rows, columns = 0, [grid.columns] * grid.rows, [grid.rows] * grid.columns
    for visit in begun:
        visited |= 1 << (visit.row * grid.columns + visit.column)
        rows[visit.row] -= 1
        columns[visit.column] -= 1
    still_open = [*rows, *columns]
    held = held_by_lru([pair for visit in begun for pair in grid.pairs(visit)], capacity)
    units = [unit if still_open[unit // grid.chunks] else -1 for unit in held]
    while units and units[-1] < 0:
        units.pop()
    return Begun(visited, tuple(units), so_far)


def _loads(grid: PanelGrid, walk: Sequence[Visit], capacity: int, cache: Cache) -> int:
    return sum(map(len, loaded([pair for visit in walk for pair in grid.pairs(visit)], capacity, cache)))
