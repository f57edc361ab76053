"""How many loads a walk costs: the plain definition that the searches are checked against.

Row-major over 2 x 2 tiles in a cache of three units, what LRU holds after each touch, oldest first:

    touch   row 0   col 0   row 0   col 1      row 1      col 0      row 1      col 1
    load    *       *               *          *          *
    held    r0      r0 c0   c0 r0   c0 r0 c1   r0 c1 r1   c1 r1 c0   c1 c0 r1   c0 r1 c1

That is 5 loads. OPT drops row 0 for row 1, since it is never touched again, and loads 4.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from interlace.orders.panels import Cache, Pair, PanelGrid, Visit


def loads(grid: PanelGrid, walk: Sequence[Visit], capacity: int, cache: Cache) -> int:
    """Loads of a walk from an empty cache of ``capacity`` units.

    Raises:
        SearchError: the two units of a pair do not fit.
        OrderError: the walk does not visit each tile once.
    """
    grid.check_capacity(capacity)
    grid.check_walk(walk)
    pairs = [pair for visit in walk for pair in grid.pairs(visit)]
    return _lru(pairs, capacity) if cache is Cache.LRU else _opt(pairs, capacity)


def _lru(pairs: Sequence[Pair], capacity: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for pair in pairs:
        for unit in pair:
            if unit in held:
                held.move_to_end(unit)
                continue
            misses += 1
            held[unit] = None
            if len(held) > capacity:
                held.popitem(last=False)
    return misses


def _opt(pairs: Sequence[Pair], capacity: int) -> int:
    """Furthest next use goes first; a pair never evicts its own half."""
    never = len(pairs)
    upcoming: dict[int, list[int]] = {}
    for when in reversed(range(never)):
        for unit in pairs[when]:
            upcoming.setdefault(unit, []).append(when)
    held: dict[int, int] = {}  # unit to its next use
    by_next_use: list[tuple[int, int]] = []  # a heap of (-next use, unit); entries of older next uses are stale
    misses = 0
    for pair in pairs:
        for unit in pair:
            misses += unit not in held
            upcoming[unit].pop()
            held[unit] = upcoming[unit][-1] if upcoming[unit] else never
        while len(held) > capacity:  # the pair itself is not in the heap yet
            next_use, unit = heapq.heappop(by_next_use)
            if held.get(unit) == -next_use:
                del held[unit]
        for unit in pair:
            heapq.heappush(by_next_use, (-held[unit], unit))
    return misses
