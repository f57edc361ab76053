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
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges
from interlace.plan.plan import Plan
from interlace.planner.shared_results import invert, make_key, reorder, sort_by_tile
from interlace.sim.traffic import Touches, list_touches

_MAX_PLANS = 12  # number of cached plans; the touches of each take megabytes


class TouchCache:
    """Cached touches of plans of one graph."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Touches] = {}

    def __call__(self, plan: Plan, limit: int, bound: int) -> Touches:
        """Return the touches of a plan, as ``sim.traffic.touches`` does."""
        order = sort_by_tile(plan.items)
        tile = plan.tile_of_item[order]
        if (np.diff(order)[np.diff(tile) == 0] < 0).any():
            return list_touches(plan, limit, bound)  # the sequence decides which part of a tile comes last
        some = reorder(plan.items, order)
        key = make_key(some.op, some.tile, some.k_lo, some.k_hi), limit, bound
        found = self._found.pop(key, None) or list_touches(replace(plan, items=some), limit, bound)
        self._found[key] = found
        if len(self._found) > _MAX_PLANS:
            del self._found[next(iter(self._found))]
        at = invert(order)
        steps = Groups(found.step_ptr, np.arange(len(found.read_ptr) - 1, dtype=np.int64)).take(at)
        read_ptr, reads = _permute_rows(found.read_ptr, found.reads, steps.values)
        write_ptr, writes = _permute_rows(found.write_ptr, found.writes, at)
        return replace(found, step_ptr=steps.ptr, read_ptr=read_ptr, reads=reads, write_ptr=write_ptr, writes=writes)


def _permute_rows(ptr: Ints, values: NDArray[np.int32], rows: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """Permute ragged rows; return the new row offsets and values."""
    sizes = np.diff(ptr)[rows]
    return compute_offsets(sizes), values[expand_ranges(ptr[rows], sizes)]
