"""Footprint of a plan's items: the boxes of tensors that each step touches.

An item runs in *steps*: one per chunk of its part of the reduction, or a single one if its op has no reduction. Each
step reads the regions that move with k. The last step also reads the other regions (bias, residual) and then writes.
Of the split-K parts of a tile, only the last one reads these other regions and writes the tile. Every part writes its
partial sum to a workspace, and the last part reads the partial sums of the others. Which part is last is known only at
run time; the simulation takes the last one in the sequence.

Worked example, one tile of C = A @ B + bias with k 0:8 in chunks of 4, cut in two, items 0 and 1:

    step    item   reads                               then writes
    0       0      A[.., 0:4] B[0:4, ..]               sum 0
    1       1      A[.., 4:8] B[4:8, ..] sum 0 bias    sum 1, C
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Access, Ints, Span
from interlace.graph.ragged import find_distinct
from interlace.graph.uses import compute_boxes as bounds_of_tiles
from interlace.plan.plan import Plan

_SUM_BYTES = 4  # partial sums are float32


@dataclass(frozen=True)
class AxisBounds:
    """Bounds along one dimension, per class of items and per step; one column if they do not move with k.

    Attributes:
        cls: class of each item.
        lo, hi: shape (classes, steps or 1).
    """

    cls: Ints
    lo: Ints
    hi: Ints

    def resolve(self, edges: Ints) -> AxisBounds:
        """Return these bounds unchanged, because they do not move with k."""
        return self

    def convert_to_indices(self, cuts: Ints) -> AxisBounds:
        """Return the bounds as indices into ``cuts``, which contain all of them."""
        return AxisBounds(self.cls, np.searchsorted(cuts, self.lo), np.searchsorted(cuts, self.hi))


@dataclass(frozen=True)
class MovingAxisBounds:
    """Bounds along one dimension that move with k, before the steps are known.

    Attributes:
        span: span that moves with k.
        extent: extent of the dimension.
        cls: class of each item.
        lo, hi: bounds of each class at k = 0, shape (classes, 1).
    """

    span: Span
    extent: int
    cls: Ints
    lo: Ints
    hi: Ints

    def resolve(self, edges: Ints) -> AxisBounds:
        """Return the bounds in the steps between ``edges``."""
        lo = self.lo + (self.span.lo.k_lo * edges[:-1] + self.span.lo.k_hi * edges[1:])
        hi = self.hi + (self.span.hi.k_lo * edges[:-1] + self.span.hi.k_hi * edges[1:])
        return AxisBounds(self.cls, np.clip(lo, 0, self.extent), np.clip(hi, 0, self.extent))


def _bound_axis(span: Span, extent: int, coords: Ints) -> AxisBounds | MovingAxisBounds:
    """Return the bounds of a span for the items at ``coords``."""
    none = np.zeros(len(coords), np.int64)
    lo, hi = (bound.evaluate(coords, none, none) for bound in (span.lo, span.hi))
    first, cls = find_distinct(lo, hi)
    lo, hi = lo[first, None], hi[first, None]
    if span.uses_k:
        return MovingAxisBounds(span, extent, cls, lo, hi)
    return AxisBounds(cls, np.clip(lo, 0, extent), np.clip(hi, 0, extent))


@dataclass(frozen=True)
class ItemBoxes:
    """Boxes of one tensor that some items touch through one access: one box per step, or one in the last step only.

    Attributes:
        tensor: index of the tensor in the graph; the number of tensors stands for the workspace.
        is_written: True if the item writes the box at its end, False if a step reads it.
        items: positions of the items in the sequence.
        first, last: steps of each item, as columns of the reaches.
        reaches: bounds along each dimension.
    """

    tensor: int
    is_written: bool
    items: Ints
    first: Ints
    last: Ints
    reaches: tuple[AxisBounds, ...]


@dataclass(frozen=True)
class _UncutBoxes:
    """``ItemBoxes`` before the steps are known.

    Attributes:
        moves: True if the box moves with k, so that each step touches one; otherwise only the last step does.
    """

    tensor: int
    is_written: bool
    items: Ints
    moves: bool
    reaches: tuple[AxisBounds | MovingAxisBounds, ...]

    def cut(self, first: Ints, last: Ints, edges: Ints) -> ItemBoxes:
        """Return the boxes in the steps between ``edges``; each item runs the steps from ``first`` to ``last``."""
        once = np.zeros(len(self.items), np.int64)
        columns = (first, last) if self.moves else (once, once + 1)
        return ItemBoxes(
            self.tensor, self.is_written, self.items, *columns, tuple(r.resolve(edges) for r in self.reaches)
        )


@dataclass(frozen=True)
class StepFootprint:
    """All boxes of a plan, for one length of a step.

    Attributes:
        boxes: boxes in the order in which a step touches them.
        steps: number of steps of each item.
        sum_bytes: size of each partial sum in the workspace, in bytes.
    """

    boxes: list[ItemBoxes]
    steps: Ints
    sum_bytes: Ints


class FootprintBuilder:
    """Footprints of a plan in steps of any length; the parts that do not depend on the length are computed once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        items, n = plan.items, len(plan.items)
        _, tile, parts = np.unique(plan.tile_of_item, return_inverse=True, return_counts=True)
        self._parts = parts[tile]
        last = np.zeros(len(parts), np.int64)
        np.maximum.at(last, tile, np.arange(n))
        self._closes = last[tile] == np.arange(n)
        split = np.flatnonzero(self._parts > 1)
        by_tile = split[np.argsort(tile[split], kind="stable")]  # a tile's last part has its last slot
        self._slot = np.full(n, -1, np.int64)
        self._slot[by_tile] = np.arange(len(by_tile))
        self._sum_bytes = np.zeros(len(by_tile), np.int64)
        self._mine = [np.flatnonzero(items.op == o) for o in range(len(plan.graph.ops))]
        self._uncut = [list(self._collect_op(o, mine)) for o, mine in enumerate(self._mine)]

    def cut(self, chunks: int) -> StepFootprint:
        """Return the footprint for steps of ``chunks`` chunks of a reduction."""
        items, boxes, steps = self._plan.items, [], np.zeros(len(self._plan.items), np.int64)
        for op, mine, uncut in zip(self._plan.graph.ops, self._mine, self._uncut, strict=True):
            k_lo, k_hi = items.k_lo[mine], items.k_hi[mine]
            block = (op.reduction.block if op.reduction else 1) * chunks
            edges = np.unique(np.concatenate([np.arange(0, op.k_extent, block, dtype=np.int64), k_lo, k_hi]))
            first, last = np.searchsorted(edges, k_lo), np.searchsorted(edges, k_hi)
            steps[mine] = last - first
            boxes += [some.cut(first, last, edges) for some in uncut]
        return StepFootprint(boxes, steps, self._sum_bytes)

    def _collect_op(self, o: int, mine: Ints) -> Iterator[_UncutBoxes]:
        graph, items = self._plan.graph, self._plan.items
        op, shapes = graph.ops[o], {t.name: t.shape for t in graph.tensors}

        def access(a: Access, written: bool = False) -> _UncutBoxes:
            some = mine if a.uses_k else mine[self._closes[mine]]
            coords = op.compute_coords(items.tile[some])
            reaches = tuple(_bound_axis(s, n, coords) for s, n in zip(a.spans, shapes[a.tensor], strict=True))
            return _UncutBoxes(list(shapes).index(a.tensor), written, some, a.uses_k, reaches)

        def sums(some: Ints, lo: Ints, hi: Ints, written: bool) -> _UncutBoxes:
            each = np.arange(len(some), dtype=np.int64)
            return _UncutBoxes(len(shapes), written, some, False, (AxisBounds(each, lo[:, None], hi[:, None]),))

        split = mine[self._parts[mine] > 1]
        slot, closing = self._slot[split], split[self._closes[split]]
        reads = op.substitute_expected(op.reads)
        moving = [a for a in reads if a.uses_k]
        yield from (access(a) for a in moving)
        if len(split):
            lo, hi = bounds_of_tiles(graph, op, op.writes[0])
            # A gated matmul multiplies its first operand with two others and accumulates both products.
            self._sum_bytes[slot] = (hi - lo).prod(axis=1).max() * max(len(moving) - 1, 1) * _SUM_BYTES
            own = self._slot[closing]
            yield sums(closing, own - self._parts[closing] + 1, own, written=False)
        yield from (access(a) for a in reads if not a.uses_k)
        if len(split):
            yield sums(split, slot, slot + 1, written=True)
        yield from (access(a, written=True) for a in op.substitute_expected(op.writes))
