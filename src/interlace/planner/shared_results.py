"""Results that plans of one graph share, computed once: dependencies, interleavings and waits.

Candidates of a search mostly differ in the sequence of their items, not in the items. The waits of an item follow from
its tile and its part of the reduction and do not depend on its position in the sequence:

    items           A0 A1 B0 B1        waits    -  -  a  b        derived once
    a candidate     A0 B0 A1 B1        waits    -  a  -  b        gathered from these
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.ragged import Groups
from interlace.plan.plan import Items, Waits
from interlace.planner.waits import derive_waits
from interlace.policies.interleavings import Interleaving, OpMajorItems


class SharedResults:
    """Results shared by all plans of a graph.

    Attributes:
        graph: graph of the plans.
        dependencies: dependencies of the graph.
    """

    def __init__(self, graph: Graph, dependencies: Dependencies | None = None) -> None:
        self.graph = graph
        self.dependencies = dependencies or Dependencies(graph)
        self._waits: dict[Hashable, Waits] = {}
        self._sequences: dict[Hashable, tuple[Interleaving, Ints]] = {}  # holding the interleaving keeps its id unique

    def interleave(self, interleaving: Interleaving, parts: OpMajorItems, post: Ints) -> Ints:
        """Return the sequence of an interleaving, as ``Interleaving.interleave`` does."""
        key = id(interleaving), make_key(parts.op, parts.tile, parts.k_lo, parts.k_hi, post)
        if key not in self._sequences:
            self._sequences[key] = interleaving, interleaving.interleave(parts, self.dependencies, post)
        return self._sequences[key][1]

    def derive_waits(self, items: Items, post_of_tile: Ints, chunk_waits: bool) -> Waits:
        """Return the waits of items, as ``derive_waits`` does."""
        order = sort_by_tile(items)
        some = reorder(items, order)
        key = make_key(some.op, some.tile, some.k_lo, some.k_hi, post_of_tile), chunk_waits
        if key not in self._waits:
            self._waits[key] = derive_waits(self.dependencies, some, post_of_tile, chunk_waits)
        found = self._waits[key]
        at = Groups(found.ptr, np.arange(len(found), dtype=np.int64)).take(invert(order))
        columns = (column[at.values] for column in (found.first, found.count, found.stride, found.threshold, found.k))
        return Waits(at.ptr, *columns)


def sort_by_tile(items: Items) -> Ints:
    """Return the positions of the items sorted by op, tile and part."""
    order: Ints = np.lexsort((items.k_lo, items.tile, items.op)).astype(np.int64)
    return order


def invert(order: Ints) -> Ints:
    """Return the position of each item in an order (inverse permutation)."""
    out = np.empty_like(order)
    out[order] = np.arange(len(order))
    return out


def reorder(items: Items, order: Ints) -> Items:
    """Return the items in another order."""
    return Items(*(column[order] for column in vars(items).values()))


def make_key(*columns: Ints) -> tuple[bytes, ...]:
    """Return a key that is equal for equal columns."""
    return tuple(column.tobytes() for column in columns)
