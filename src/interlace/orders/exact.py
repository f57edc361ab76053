"""Minimum loads of all orders of a small grid, with a proof, or the best order found within limits.

The search starts from the order that the beam search finds, so it stores only states that can still beat that order.
When no such state is left, the best order known is the minimum.

    4 x 4 tiles, LRU, capacity 5: the beam finds 9 loads, the bound at the start is 8. Eight states could
    lead to 8 loads, but each move from them costs one more; so 9 is proved.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.errors import SearchError
from interlace.orders.astar import AStarSearch, Progress
from interlace.orders.beam import search_beam
from interlace.orders.panels import EvictionPolicy, Pair, PanelGrid, Visit, relabel_walk
from interlace.orders.remaining import bound_loads
from interlace.orders.replay import count_loads
from interlace.orders.states import MAX_TILES, MAX_UNITS


@dataclass(frozen=True)
class ExactResult:
    """Result of a search.

    Attributes:
        loads: loads of the best order found.
        walk: that order, with the way in which each tile touches its units.
        is_proved: True if no order costs less.
        lower_bound: proved lower bound on the loads of any order; equal to ``count_loads`` if proved.
        states: number of stored states, counting states that differ only by renaming once.
        stop_reason: reason why the search stopped short of a proof, "" if it did not.
    """

    loads: int
    walk: tuple[Visit, ...]
    is_proved: bool
    lower_bound: int
    states: int
    stop_reason: str = ""

    @property
    def path(self) -> tuple[Pair, ...]:
        """Row and column of each tile, in sequence."""
        return tuple((visit.row, visit.column) for visit in self.walk)


def find_minimum(
    grid: PanelGrid,
    capacity: int,
    cache: EvictionPolicy,
    *,
    start: Pair | None = (0, 0),
    max_states: int | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> ExactResult:
    """Return the minimum loads over all orders of a grid's tiles, and such an order.

    Args:
        grid: at most 49 tiles and 255 units.
        capacity: units that the cache holds, at least 2.
        cache: eviction policy.
        start: first tile of the path, None for any; the minimum does not depend on it.
        max_states: number of states at which the search stops short of a proof, each of ``astar.compute_state_bytes``
            and twice that while the tables grow; None for as many as 1 GiB holds.
        seconds: time after which the search stops short of a proof.
        progress: callback that now and then gets the stored states, the lower bound and the best loads known.

    Raises:
        SearchError: the grid is too large, the capacity or a limit too small, or the start not in the grid.
    """
    _check(grid, capacity, start, max_states, seconds)
    if explain_too_large(grid):
        raise SearchError(f"{explain_too_large(grid)}; use the beam search")
    capacity = min(capacity, grid.units)
    known = search_beam(grid, capacity, cache)
    search = AStarSearch(grid, capacity, cache, known.loads, max_states)
    stopped = search.run(seconds, progress)
    walk = relabel_walk(search.rebuild_walk() if search.at.goal[0] >= 0 else known.walk, start or (0, 0))
    cost = count_loads(grid, walk, capacity, cache)
    bound = int(search.at.bound[0]) if stopped else cost
    return ExactResult(cost, walk, not stopped, bound, int(search.at.states[0]), stopped)


def find_best_order(
    grid: PanelGrid,
    capacity: int,
    cache: EvictionPolicy,
    *,
    start: Pair | None = (0, 0),
    max_states: int | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> ExactResult:
    """Return ``find_minimum`` if the grid is small enough, else the order of the beam search, mostly without a proof.

    If the beam search is not over after ``seconds``, the result is the best of the named orders.

    Raises:
        SearchError: the grid is too large for either search, or as for ``find_minimum``.
    """
    if not explain_too_large(grid):
        return find_minimum(
            grid, capacity, cache, start=start, max_states=max_states, seconds=seconds, progress=progress
        )
    _check(grid, capacity, start, max_states, seconds)
    found = search_beam(grid, capacity, cache, seconds)
    bound = bound_loads(grid, min(capacity, grid.units), found.loads)
    proved = found.loads == bound
    if found.is_timed_out:
        answer = f"and the beam search was not over within {seconds:g} seconds, so the best named order answered"
    else:
        answer = "so the beam search answered"
    stopped = "" if proved else f"{explain_too_large(grid)}, {answer}"
    walk = relabel_walk(found.walk, start or (0, 0))
    return ExactResult(found.loads, walk, proved, bound, 0, stopped)


def explain_too_large(grid: PanelGrid) -> str:
    """Return the reason why a grid is too large for exact search, "" if it is not."""
    if grid.tiles <= MAX_TILES and grid.units <= MAX_UNITS:
        return ""
    return (
        f"{grid.rows} x {grid.columns} tiles with {grid.units} units are too many for exact search, "
        f"which takes {MAX_TILES} tiles and {MAX_UNITS} units"
    )


def _check(grid: PanelGrid, capacity: int, start: Pair | None, max_states: int | None, seconds: float) -> None:
    grid.check_capacity(capacity)
    if start is not None and not (0 <= start[0] < grid.rows and 0 <= start[1] < grid.columns):
        raise SearchError(
            f"start {start} is outside the grid; use a row of 0..{grid.rows - 1} and a column of 0..{grid.columns - 1}"
        )
    if max_states is not None and max_states < 1:
        raise SearchError(f"a limit of {max_states} states leaves no search; use a positive one")
    if not seconds > 0:
        raise SearchError(f"a limit of {seconds:g} seconds leaves no search; use a positive one")
