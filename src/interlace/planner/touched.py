"""Touches of several plans of one graph, computed once for plans that have the same items.

These plans differ only in the sequence of their items (``shared``). Their touches are those of the items sorted by
tile, permuted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, offsets, ranges
from interlace.plan.plan import Plan
from interlace.planner.shared import by_tile, inverse, key_of, taken
from interlace.sim.traffic import Touches, touches

_KEPT = 12  # number of cached plans; the touches of each take megabytes


class Touched:
    """Cached touches of plans of one graph."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Touches] = {}

    def __call__(self, plan: Plan, limit: int, bound: int) -> Touches:
        """Return the touches of a plan, as ``sim.traffic.touches`` does."""
        order = by_tile(plan.items)
        tile = plan.tile_of_item[order]
        if (np.diff(order)[np.diff(tile) == 0] < 0).any():
            return touches(plan, limit, bound)  # the sequence decides which part of a tile comes last
        some = taken(plan.items, order)
        key = key_of(some.op, some.tile, some.k_lo, some.k_hi), limit, bound
        found = self._found.pop(key, None) or touches(replace(plan, items=some), limit, bound)
        self._found[key] = found
        if len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]
        at = inverse(order)
        steps = Groups(found.step_ptr, np.arange(len(found.read_ptr) - 1, dtype=np.int64)).take(at)
        read_ptr, reads = _rows(found.read_ptr, found.reads, steps.values)
        write_ptr, writes = _rows(found.write_ptr, found.writes, at)
        return replace(found, step_ptr=steps.ptr, read_ptr=read_ptr, reads=reads, write_ptr=write_ptr, writes=writes)


def _rows(ptr: Ints, values: NDArray[np.int32], rows: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """Permute ragged rows; return the new row offsets and values."""
    sizes = np.diff(ptr)[rows]
    return offsets(sizes), values[ranges(ptr[rows], sizes)]
