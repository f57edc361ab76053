"""What plans of one graph share, found once: dependencies, interleavings and waits.

Candidates of a search mostly differ in the sequence of their items, not in the items. What an item waits for follows
from its tile and its part of the reduction, wherever it stands in the sequence:

    items           A0 A1 B0 B1        waits    -  -  a  b        found once
    a candidate     A0 B0 A1 B1        waits    -  a  -  b        taken from these
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
from interlace.policies.interleavings import Interleaving, Parts


class Shared:
    """Of all plans of a graph.

    Attributes:
        graph: which.
        dependencies: its.
    """

    def __init__(self, graph: Graph, dependencies: Dependencies | None = None) -> None:
        self.graph = graph
        self.dependencies = dependencies or Dependencies(graph)
        self._waits: dict[Hashable, Waits] = {}
        self._sequences: dict[Hashable, tuple[Interleaving, Ints]] = {}  # which keeps the id its own

    def sequence(self, interleaving: Interleaving, parts: Parts, post: Ints) -> Ints:
        """As ``Interleaving.sequence``."""
        key = id(interleaving), key_of(parts.op, parts.tile, parts.k_lo, parts.k_hi, post)
        if key not in self._sequences:
            self._sequences[key] = interleaving, interleaving.sequence(parts, self.dependencies, post)
        return self._sequences[key][1]

    def waits(self, items: Items, post_of_tile: Ints, chunk_waits: bool) -> Waits:
        """As ``derive_waits``."""
        order = by_tile(items)
        some = taken(items, order)
        key = key_of(some.op, some.tile, some.k_lo, some.k_hi, post_of_tile), chunk_waits
        if key not in self._waits:
            self._waits[key] = derive_waits(self.dependencies, some, post_of_tile, chunk_waits)
        found = self._waits[key]
        at = Groups(found.ptr, np.arange(len(found), dtype=np.int64)).take(inverse(order))
        columns = (column[at.values] for column in (found.first, found.count, found.stride, found.threshold, found.k))
        return Waits(at.ptr, *columns)


def by_tile(items: Items) -> Ints:
    """Positions of the items by op, tile and part."""
    order: Ints = np.lexsort((items.k_lo, items.tile, items.op)).astype(np.int64)
    return order


def inverse(order: Ints) -> Ints:
    """Of each item, its place in an order."""
    out = np.empty_like(order)
    out[order] = np.arange(len(order))
    return out


def taken(items: Items, order: Ints) -> Items:
    """The items in another order."""
    return Items(*(column[order] for column in vars(items).values()))


def key_of(*columns: Ints) -> tuple[bytes, ...]:
    """Equal for equal columns."""
    return tuple(column.tobytes() for column in columns)
