"""Traffic: the units that each item of a plan touches, in order.

Worked example, two tiles of C = A @ B side by side, k 0:8 in chunks of 4:

    units     A: 0 1    B: 2 3    C: 6 7        A is cut along k, B along k and between the tiles
                           4 5
    item 0    step 0 reads 0 2, step 1 reads 1 4, then writes 6
    item 1    step 2 reads 0 3, step 3 reads 1 5, then writes 7

    step_ptr 0 2 4    read_ptr 0 2 4 6 8    reads 0 2 1 4 0 3 1 5    write_ptr 0 1 2    writes 6 7
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import SimulationError
from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.graph.graph import Graph
from interlace.graph.ragged import compute_offsets
from interlace.plan.facts import check_items
from interlace.plan.plan import Plan
from interlace.sim.boxes import FootprintBuilder, ItemBoxes, StepFootprint
from interlace.sim.units import Partition, Units

#: Maximum of units, steps and touches together in a simulated plan. Each takes some 20 bytes in this module and some
#: 60 at the peak of a prediction, which is 2 GB.
MAX_ENTRIES = 1 << 25


@dataclass(frozen=True, eq=False)
class Touches:
    """Units that the items of a plan touch; items are in sequence order.

    Attributes:
        units: all units of the graph's tensors.
        step_ptr: item ``i`` has steps ``step_ptr[i]:step_ptr[i + 1]``.
        read_ptr, reads: step ``s`` reads units ``reads[read_ptr[s]:read_ptr[s + 1]]``, in this order.
        write_ptr, writes: item ``i`` ends by writing units ``writes[write_ptr[i]:write_ptr[i + 1]]``.
        chunks_per_step: chunks of a reduction per step; more than 1 if the limit requires it.
    """

    units: Units
    step_ptr: Ints
    read_ptr: Ints
    reads: NDArray[np.int32]
    write_ptr: Ints
    writes: NDArray[np.int32]
    chunks_per_step: int

    def __len__(self) -> int:
        return len(self.reads) + len(self.writes)


def list_touches(plan: Plan, limit: int = MAX_ENTRIES, bound: int | None = None) -> Touches:
    """Return the touches of a plan, with the fewest chunks per step (a power of two) that stay within ``limit``.

    Args:
        bound: larger limit that applies when whole reductions in one step exceed ``limit``.

    Raises:
        SimulationError: even with whole reductions in one step, units, steps and touches exceed both limits.
        PlanError: the plan's arrays are inconsistent.
    """
    check_items(plan)
    most = max(op.reduction.chunks if op.reduction else 1 for op in plan.graph.ops)
    footprints, chunks = FootprintBuilder(plan), 1
    while True:
        traffic = _Traffic(plan.graph, footprints.cut(chunks), chunks)
        size = traffic.count_entries()
        if size <= limit or (chunks >= most and bound is not None and size <= bound):
            return traffic.list_touches()
        if chunks >= most:
            raise SimulationError(
                f"graph {plan.graph.name!r}: {len(plan.items)} items touch {size} pieces of tensors, but a "
                f"simulation takes {max(limit, bound or 0)}; use larger tiles, or simulate a smaller problem of the "
                "same kind"
            )
        chunks *= 2


class _Traffic:
    """Footprint as boxes of units."""

    def __init__(self, graph: Graph, footprint: StepFootprint, chunks: int) -> None:
        self._chunks, tensors = chunks, graph.tensors
        self._step_ptr, self._sum_bytes = compute_offsets(footprint.steps), footprint.sum_bytes
        bounds: list[list[list[Ints]]] = [[[] for _ in t.shape] for t in tensors]
        for box in footprint.boxes:
            for d, reach in enumerate(box.reaches if box.tensor < len(tensors) else ()):
                bounds[box.tensor][d] += [reach.lo, reach.hi]
        self._partitions = tuple(Partition.from_bounds(t, b) for t, b in zip(tensors, bounds, strict=True))
        slots = np.arange(len(self._sum_bytes) + 1)
        cuts = [*(p.cuts for p in self._partitions), (slots,)]
        grids = [*(p.grid for p in self._partitions), (len(self._sum_bytes),)]
        self._base = compute_offsets(np.array([prod(grid) for grid in grids], np.int64))
        self._boxes = [(b.is_written, _Flat.from_boxes(b, self._step_ptr, cuts[b.tensor])) for b in footprint.boxes]
        self._places = [
            (int(self._base[b.tensor]), np.array([prod(grids[b.tensor][d + 1 :]) for d in range(len(b.reaches))]))
            for b in footprint.boxes
        ]

    def count_entries(self) -> int:
        """Return the number of units, steps and touches together."""
        touched = sum(_count_units(box) for _, box in self._boxes)
        return int(self._base[-1] + self._step_ptr[-1]) + touched

    def list_touches(self) -> Touches:
        """Return the touches: the units of all boxes."""
        read, written = np.zeros(self._step_ptr[-1], np.int64), np.zeros(len(self._step_ptr) - 1, np.int64)
        for writes, box in self._boxes:
            _add_counts(box, written if writes else read)
        read_ptr, write_ptr = compute_offsets(read), compute_offsets(written)
        reads_out, writes_out = np.empty(read_ptr[-1], np.int32), np.empty(write_ptr[-1], np.int32)
        read_at, write_at = read_ptr.copy(), write_ptr.copy()
        for (writes, box), (base, strides) in zip(self._boxes, self._places, strict=True):
            low, high = np.empty((2, len(strides)), np.int64)
            _write_units(
                box, base, strides, low, high, write_at if writes else read_at, writes_out if writes else reads_out
            )
        units = self._list_units(writes_out)
        return Touches(units, self._step_ptr, read_ptr, reads_out, write_ptr, writes_out, self._chunks)

    def _list_units(self, writes: NDArray[np.int32]) -> Units:
        sizes = [*(p.nbytes for p in self._partitions), self._sum_bytes]
        tensor = np.repeat(np.arange(len(sizes), dtype=np.int32), [len(nbytes) for nbytes in sizes])
        produced = np.zeros(len(tensor), bool)
        produced[writes] = True
        return Units(tensor, produced, np.concatenate(sizes), self._partitions)


class _Flat(NamedTuple):
    """Boxes in a form that compiled code accepts.

    Attributes:
        rows: row of each item's first step in the arrays that are counted and filled.
        first, last: column of its first step, and the column after its last.
        cls: class by dimension and item.
        start, columns: start of each dimension's table, and its number of columns.
        lo, hi: all tables end to end, with bounds in unit coordinates.
    """

    rows: Ints
    first: Ints
    last: Ints
    cls: Ints
    start: Ints
    columns: Ints
    lo: Ints
    hi: Ints

    @staticmethod
    def from_boxes(box: ItemBoxes, step_ptr: Ints, cuts: tuple[Ints, ...]) -> _Flat:
        reaches = [r.convert_to_indices(c) for r, c in zip(box.reaches, cuts, strict=True)]
        return _Flat(
            rows=box.items if box.is_written else step_ptr[box.items + 1] - (box.last - box.first),
            first=box.first,
            last=box.last,
            cls=np.stack([r.cls for r in reaches]),
            start=compute_offsets(np.array([r.lo.size for r in reaches], np.int64)),
            columns=np.array([r.lo.shape[1] for r in reaches], np.int64),
            lo=np.concatenate([r.lo.ravel() for r in reaches]),
            hi=np.concatenate([r.hi.ravel() for r in reaches]),
        )


@cached_njit(allocates=False)
def _count_units(box: _Flat) -> int:
    """Return the number of units of all boxes. Consecutive items with equal steps and classes share a sweep over k."""
    rows, first, last, cls, start, columns, lo, hi = box
    total = sweep = 0
    for i in range(len(rows)):
        still, again = 1, i > 0 and first[i] == first[i - 1] and last[i] == last[i - 1]
        for d in range(len(columns)):
            if columns[d] > 1:
                again = again and cls[d, i] == cls[d, i - 1]
            else:
                at = start[d] + cls[d, i]
                still *= max(hi[at] - lo[at], 0)
        if not again:
            sweep = 0
            for step in range(first[i], last[i]):
                size = 1
                for d in range(len(columns)):
                    if columns[d] > 1:
                        at = start[d] + cls[d, i] * columns[d] + step
                        size *= max(hi[at] - lo[at], 0)
                sweep += size
        total += still * sweep
    return total


@cached_njit(allocates=False)
def _add_counts(box: _Flat, counts: Ints) -> None:
    """Add the units of every box to ``counts``."""
    rows, first, last, cls, start, columns, lo, hi = box
    for i in range(len(rows)):
        for step in range(first[i], last[i]):
            size = 1
            for d in range(len(columns)):
                at = start[d] + cls[d, i] * columns[d] + (step if columns[d] > 1 else 0)
                size *= max(hi[at] - lo[at], 0)
            counts[rows[i] + step - first[i]] += size


@cached_njit(allocates=False)
def _write_units(
    box: _Flat, base: int, strides: Ints, low: Ints, high: Ints, cursor: Ints, out: NDArray[np.int32]
) -> None:
    """Write the units of every box, row-major, at the cursor of its row; ``low`` and ``high`` are scratch space."""
    rows, first, last, cls, start, columns, lo, hi = box
    rank = len(columns)
    for i in range(len(rows)):
        for step in range(first[i], last[i]):
            lines = 1
            for d in range(rank):
                at = start[d] + cls[d, i] * columns[d] + (step if columns[d] > 1 else 0)
                low[d], high[d] = lo[at], max(hi[at], lo[at])
                if d < rank - 1:
                    lines *= high[d] - low[d]
            to = cursor[rows[i] + step - first[i]]
            for line in range(lines):
                unit, rest = base, line
                for d in range(rank - 2, -1, -1):
                    width = high[d] - low[d]
                    unit += (low[d] + rest % width) * strides[d]
                    rest //= width
                for column in range(low[rank - 1], high[rank - 1]):
                    out[to] = unit + column
                    to += 1
            cursor[rows[i] + step - first[i]] = to
