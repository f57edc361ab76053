"""Loads of a walk: the plain definition that the searches are checked against.

Row-major over 2 x 2 tiles in a cache of three units; contents of LRU after each touch, oldest first:

    touch   row 0   col 0   row 0   col 1      row 1      col 0      row 1      col 1
    load    *       *               *          *          *
    held    r0      r0 c0   c0 r0   c0 r0 c1   r0 c1 r1   c1 r1 c0   c1 c0 r1   c0 r1 c1

That is 5 loads. OPT evicts row 0 for row 1, since row 0 is never touched again, and loads 4.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from interlace.core.errors import SearchError
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit

Group = Sequence[int]
"""Units that are held together during a computation, in the sequence in which they are touched."""


def count_loads(grid: PanelGrid, walk: Sequence[Visit], capacity: int, cache: EvictionPolicy) -> int:
    """Return the loads of a walk from an empty cache of ``capacity`` units.

    Raises:
        SearchError: the two units of a pair do not fit.
        OrderError: the walk does not visit each tile once.
    """
    grid.check_capacity(capacity)
    grid.check_walk(walk)
    pairs = [pair for visit in walk for pair in grid.list_pairs(visit)]
    return sum(map(len, find_loaded(pairs, capacity, cache)))


def find_loaded(
    groups: Sequence[Group], capacity: int, cache: EvictionPolicy, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the units of each group that are loaded, from an empty cache.

    Args:
        groups: groups in the sequence in which they are touched.
        capacity: capacity in bytes with ``sizes``, in units without.
        cache: eviction policy.
        sizes: bytes of each unit, for LRU only. A load evicts the least recently touched units until it fits.

    Raises:
        SearchError: sizes under OPT, which this replay supports for equal units only, or a group that does not fit.
    """
    if sizes is not None and cache is EvictionPolicy.OPT:
        raise SearchError("OPT takes units of one size; give the capacity in units, or use LRU")
    most = max((sum(sizes[unit] for unit in {*group}) if sizes else len({*group}) for group in groups), default=0)
    if most > capacity:
        raise SearchError(f"a cache of {capacity} holds no {most} at once; use a larger one")
    return _replay_lru(groups, capacity, sizes) if cache is EvictionPolicy.LRU else _replay_opt(groups, capacity)


def find_lru_contents(groups: Sequence[Group], capacity: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Return the units that LRU holds after all groups, the most recent first; arguments as for ``find_loaded``.

    These are the units of the latest touches, as many as fit, also of unequal sizes (proof in ``orders.distances``).
    """
    held: list[int] = []
    for unit in list_touched(groups):
        capacity -= sizes[unit] if sizes else 1
        if capacity < 0:
            break
        held.append(unit)
    return held


def list_touched(groups: Sequence[Group]) -> list[int]:
    """Return every unit that was touched, once, the most recent first."""
    return list(dict.fromkeys(unit for group in reversed(groups) for unit in reversed(group)))


def _replay_lru(groups: Sequence[Group], capacity: int, sizes: Sequence[int] | None) -> list[list[int]]:
    held: OrderedDict[int, None] = OrderedDict()
    room, misses = capacity, []
    for group in groups:
        missed = []
        for unit in group:
            if unit in held:
                held.move_to_end(unit)
                continue
            missed.append(unit)
            held[unit] = None
            room -= sizes[unit] if sizes else 1
            while room < 0:
                gone, _ = held.popitem(last=False)
                room += sizes[gone] if sizes else 1
        misses.append(missed)
    return misses


def _replay_opt(groups: Sequence[Group], capacity: int) -> list[list[int]]:
    """Replay OPT: the furthest next use is evicted first; a group never evicts a part of itself."""
    never = len(groups)
    upcoming: dict[int, list[int]] = {}
    for when in reversed(range(never)):
        for unit in groups[when]:
            upcoming.setdefault(unit, []).append(when)
    held: dict[int, int] = {}  # unit to its next use
    by_next_use: list[tuple[int, int]] = []  # a heap of (-next use, unit); entries of older next uses are stale
    misses = []
    for group in groups:
        missed = []
        for unit in group:
            if unit not in held:
                missed.append(unit)
            upcoming[unit].pop()
            held[unit] = upcoming[unit][-1] if upcoming[unit] else never
        misses.append(missed)
        while len(held) > capacity:  # the group itself is not in the heap yet
            next_use, unit = heapq.heappop(by_next_use)
            if held.get(unit) == -next_use:
                del held[unit]
        for unit in group:
            heapq.heappush(by_next_use, (-held[unit], unit))
    return misses
