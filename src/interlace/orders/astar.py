"""A* over the states of ``states.py``, by the moves of ``moves.py`` and the lower bound of ``bound_remaining.py``.

Open states are kept in lists by (lower bound, loads so far). The list with the smallest bound is expanded first, and in
it the state with the most loads so far. A state that is reached again with fewer loads is reopened.

    bound 8   loads 3: states 17, 12    loads 5: state 20     next is 20, then 12, 17, and all that they
    bound 9   loads 4: state 15                               open at bound 8; then bound 9, if 9 is under
                                                              the best order known
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.orders.moves import Moves, allocate_moves, find_moves
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.remaining import Table, bound_remaining, compute_bound_table
from interlace.orders.states import Scratch, SearchShape, make_key, mix, unpack

T = TypeVar("T", bound=np.generic)
Progress = Callable[[int, int, int], None]
"""Callback that gets the number of stored states, the lower bound reached and the loads of the best order known."""
_RUNNING, _FULL, _OVER = 0, 1, 2
_SLICE = 2_000  # states expanded between checks of the time limit
_MAX_BYTES = 1 << 30
_ENTRIES = 2  # per state: one while it is open, and a stale one when it is reached again with fewer loads


class _StateStore(NamedTuple):
    """States, a hash table from keys to states, and linked lists of the open ones by (bound, cost)."""

    keys: Ints
    cost: NDArray[np.int32]
    parent: NDArray[np.int32]
    closed: NDArray[np.bool_]
    slots: NDArray[np.int32]
    entry: NDArray[np.int32]
    after: NDArray[np.int32]
    heads: NDArray[np.int32]


class _SearchProgress(NamedTuple):
    """Progress of the search; each value is a single number in an array.

    Attributes:
        states, entries: rows in use.
        free: first free entry; ``after`` leads to the next one, and is -1 for the last.
        bound: proved lower bound; no order costs less.
        best: loads of the best order known.
        goal: final state of the best order found; -1 if it is still the order that the search began with.
    """

    states: Ints
    entries: Ints
    free: Ints
    bound: Ints
    best: Ints
    goal: Ints


def compute_state_bytes(shape: SearchShape) -> int:
    """Return the maximum bytes of a state: its key, cost, parent, closed flag, hash slots and list entries.

    8 x 8 tiles and 9 units: bits 5, so 12 units to a word; 2 words, 16 + 4 + 4 + 1 + 16 + 16 = 57 bytes.
    """
    return 8 * shape.words + 4 + 4 + 1 + 4 * 4 + _ENTRIES * (4 + 4)


class StartState(NamedTuple):
    """State in which a search begins.

    Attributes:
        visited: visited tiles, one bit per tile.
        units: units held by LRU, most recent first, as in ``states.py``.
        loads: loads so far.
    """

    visited: int
    units: tuple[int, ...]
    loads: int


EMPTY_START = StartState(0, (), 0)


class AStarSearch:
    """One search: the arrays that compiled code works on, which are doubled when they are full.

    Args:
        max_states: limit of stored states; None for as many as ``_MAX_BYTES`` hold, half of which are reserved for
            copies while the arrays grow.
        begun: state to begin with.
    """

    def __init__(
        self,
        grid: PanelGrid,
        capacity: int,
        cache: EvictionPolicy,
        best: int,
        max_states: int | None,
        begun: StartState = EMPTY_START,
    ) -> None:
        opt = int(cache is EvictionPolicy.OPT)
        self.shape = SearchShape(grid.rows, grid.columns, grid.chunks, capacity, opt, grid.units.bit_length())
        self.least: Table = compute_bound_table(grid.rows, grid.columns, capacity)
        self.out = allocate_moves(self.shape)
        spare = 2 * len(self.out.cost)  # for the moves of one state
        self.max_states = max_states or max(1, _MAX_BYTES // 2 // compute_state_bytes(self.shape) - spare)
        self.most_rows = self.max_states + spare
        rows = min(max(4096, spare), self.most_rows)
        self.store = _StateStore(
            np.zeros((rows, self.shape.words), np.int64),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.bool_),
            _make_slots(rows),
            np.zeros(_ENTRIES * rows, np.int32),
            _link_entries(0, _ENTRIES * rows, -1),
            np.full((best + 1, best + 1), -1, np.int32),
        )
        units, held = np.full(capacity, -1, np.int64), len(begun.units)
        units[:held] = begun.units
        bound = begun.loads + int(bound_remaining(self.shape, self.least, begun.visited, 0, units, held))
        self.at = _SearchProgress(*(np.array([value], np.int64) for value in (0, 0, 0, bound, best, -1)))
        self.first_panels = np.arange(grid.rows + grid.columns)  # panel of the grid for each panel of the first key
        if bound < best:
            key = np.zeros(self.shape.words, np.int64)
            make_key(self.shape, begun.visited, 0, units, held, Scratch.allocate(self.shape), key, self.first_panels)
            _add(self.store, self.at, key, begun.loads, -1)
            _push(self.store, self.at, 0, bound, begun.loads)

    def run(self, seconds: float, progress: Progress | None) -> str:
        """Search to the end; return the reason why the search stopped early, or ""."""
        end = monotonic() + seconds
        scratch, panels = Scratch.allocate(self.shape), np.empty_like(self.first_panels)
        units, key = np.empty(self.shape.capacity, np.int64), np.empty(self.shape.words, np.int64)
        while True:
            status = _expand(self.shape, self.least, self.store, self.at, self.out, scratch, units, panels, key, _SLICE)
            if status == _OVER:
                return ""
            if progress is not None:
                progress(int(self.at.states[0]), int(self.at.bound[0]), int(self.at.best[0]))
            if monotonic() > end:
                return f"the limit of {seconds:g} seconds was reached"
            if status == _FULL and not self._grow():
                return f"the limit of {self.max_states} states was reached"

    def _grow(self) -> bool:
        """Double the arrays that are full; return False once ``max_states`` is reached, within one state's moves."""
        store, moves_at_once = self.store, len(self.out.cost)
        more_entries = self.at.entries[0] + moves_at_once > len(store.entry)
        if self.at.states[0] >= self.max_states or (more_entries and len(store.entry) == _ENTRIES * self.most_rows):
            return False
        if more_entries:
            before, rows = len(store.entry), min(2 * len(store.entry), _ENTRIES * self.most_rows)
            after = np.concatenate([store.after, _link_entries(before, rows, int(self.at.free[0]))])
            store = store._replace(entry=_double(store.entry, rows), after=after)
            self.at.free[0] = before
        if self.at.states[0] + moves_at_once > len(store.cost):
            rows = min(2 * len(store.cost), self.most_rows)
            store = store._replace(
                keys=_double(store.keys, rows),
                cost=_double(store.cost, rows),
                parent=_double(store.parent, rows),
                closed=_double(store.closed, rows),
                slots=_make_slots(rows),
            )
            _rehash(store, self.at)
        self.store = store
        return True

    def rebuild_walk(self) -> tuple[Visit, ...]:
        """Return the order that ends in the goal: its states from first to last, each move found again and renamed."""
        states = [int(self.at.goal[0])]
        while self.store.parent[states[-1]] >= 0:
            states.append(int(self.store.parent[states[-1]]))
        states.reverse()
        shape, out, visits = self.shape, self.out, []
        panels_of = self.first_panels  # panel of the grid for each panel of the key
        units, scratch, panels = np.empty(shape.capacity, np.int64), Scratch.allocate(shape), panels_of.copy()
        key = np.empty(shape.words, np.int64)
        for state, following in pairwise(states):
            visited, progress, held = unpack(shape, self.store.keys[state], units)
            find_moves(shape, visited, progress, units, held, out)
            # Cheapest first, because two moves may lead to the same state.
            for i in np.argsort(out.cost[: out.found[0]], kind="stable"):
                make_key(shape, out.visited[i], out.progress[i], out.units[i], out.held[i], scratch, key, panels)
                if np.array_equal(key, self.store.keys[following]):
                    break
            named = int(out.tile[i])
            gained = int(out.visited[i]) & ~visited
            for tile in sorted(range(shape.rows * shape.columns), key=lambda tile: tile != named):
                if gained >> tile & 1:
                    visits.append(_make_visit(shape, panels_of, tile, int(out.way[i]) if tile == named else 0))
            panels_of = panels_of[panels]
        return tuple(visits)


def _make_visit(shape: SearchShape, panels_of: Ints, tile: int, way: int) -> Visit:
    row, column = int(panels_of[tile // shape.columns]), int(panels_of[shape.rows + tile % shape.columns])
    exchanged = row >= shape.rows  # the key has rows and columns exchanged
    if exchanged:
        row, column = column, row
    return Visit(row, column - shape.rows, bool(way % 2) != exchanged, bool(way // 2))


def _double(column: NDArray[T], rows: int) -> NDArray[T]:
    grown = np.zeros((rows, *column.shape[1:]), column.dtype)
    grown[: len(column)] = column
    return grown


def _link_entries(first: int, end: int, following: int) -> NDArray[np.int32]:
    """Return the links of the free entries ``first:end``, the last of which leads to ``following``."""
    after = np.arange(first + 1, end + 1, dtype=np.int32)
    after[-1] = following
    return after


def _make_slots(rows: int) -> NDArray[np.int32]:
    """Return an empty hash table that stays at most half full; its size is a power of two."""
    return np.full(1 << (2 * rows - 1).bit_length(), -1, np.int32)


@cached_njit(allocates=False)
def _expand(
    shape: SearchShape,
    least: Table,
    store: _StateStore,
    at: _SearchProgress,
    out: Moves,
    scratch: Scratch,
    units: Ints,
    panels: Ints,
    key: Ints,
    steps: int,
) -> int:
    """Expand up to ``steps`` states; ``units``, ``panels`` and ``key`` are scratch space for one of them."""
    every_tile = (1 << (shape.rows * shape.columns)) - 1
    while at.bound[0] < at.best[0]:
        if at.states[0] + len(out.cost) > len(store.cost) or at.entries[0] + len(out.cost) > len(store.entry):
            return _FULL
        state = _pop(store, at)
        if state < 0:
            at.bound[0] += 1
            continue
        if steps == 0:
            so_far: Any = np.int64(store.cost[state])  # int32 would compile ``_push`` once more
            _push(store, at, state, at.bound[0], so_far)
            store.closed[state] = False
            return _RUNNING
        steps -= 1
        visited, progress, held = unpack(shape, store.keys[state], units)
        find_moves(shape, visited, progress, units, held, out)
        for i in range(out.found[0]):
            cost = store.cost[state] + out.cost[i]
            to_come = bound_remaining(shape, least, out.visited[i], out.progress[i], out.units[i], out.held[i])
            bound = max(cost + to_come, at.bound[0])
            if bound >= at.best[0]:
                continue
            make_key(shape, out.visited[i], out.progress[i], out.units[i], out.held[i], scratch, key, panels)
            found = _add(store, at, key, cost, state)
            if found < 0:
                continue
            if out.visited[i] == every_tile:
                at.best[0], at.goal[0] = cost, found
            else:
                _push(store, at, found, bound, cost)
    return _OVER


@cached_njit(allocates=False)
def _add(store: _StateStore, at: _SearchProgress, key: Ints, cost: int, parent: int) -> int:
    """Store a state reached at a cost; return its index, or -1 if it was reached as cheaply before."""
    slot = _find_slot(store, key)
    state: int = store.slots[slot]
    if state >= 0 and store.cost[state] <= cost:
        return -1
    if state < 0:
        state = at.states[0]
        at.states[0] += 1
        store.slots[slot] = state
        for i in range(len(key)):
            store.keys[state, i] = key[i]
    store.cost[state] = cost
    store.parent[state] = parent
    store.closed[state] = False
    return state


@inner_njit
def _find_slot(store: _StateStore, key: Ints) -> int:
    """Return the slot of the key in the hash table, or the free slot for it."""
    value = np.uint64(0)
    for i in range(len(key)):
        value = mix(value ^ np.uint64(key[i]))
    slot = int(np.int64(value & np.uint64(len(store.slots) - 1)))
    while store.slots[slot] >= 0:
        same = True
        for i in range(len(key)):
            same &= store.keys[store.slots[slot], i] == key[i]
        if same:
            break
        slot = (slot + 1) & (len(store.slots) - 1)
    return slot


@cached_njit(allocates=False)
def _rehash(store: _StateStore, at: _SearchProgress) -> None:
    for state in range(at.states[0]):
        store.slots[_find_slot(store, store.keys[state])] = state


@cached_njit(allocates=False)
def _push(store: _StateStore, at: _SearchProgress, state: int, bound: int, cost: int) -> None:
    entry = at.free[0]
    at.free[0] = store.after[entry]
    at.entries[0] += 1
    store.entry[entry] = state
    store.after[entry] = store.heads[bound, cost]
    store.heads[bound, cost] = entry


@inner_njit
def _pop(store: _StateStore, at: _SearchProgress) -> int:
    """Return the open state with the current bound and the most loads so far, or -1 if there is none."""
    bound = at.bound[0]
    for cost in range(bound, -1, -1):
        while store.heads[bound, cost] >= 0:
            entry = store.heads[bound, cost]
            store.heads[bound, cost] = store.after[entry]
            store.after[entry] = at.free[0]
            at.free[0] = entry
            at.entries[0] -= 1
            state: int = store.entry[entry]
            if store.cost[state] == cost and not store.closed[state]:
                store.closed[state] = True
                return state
    return -1
