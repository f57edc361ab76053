"""The check on a device whose accesses cannot be observed: what changes when undeclared memory is poisoned?

A body that reads elements 2:5 of x, but whose map declares 2:4:

    base run     ~ 0.7 0.9 1.3 0.6 1.1 0.8 ~    random numbers everywhere
    poisoned     . .   .   1.3 0.6 .   .   .    NaN outside the declared reads
    narrowed     ~ 0.7 0.9 1.3 0.6 .   0.8 ~    the smallest box of NaN with an effect

1. What changed outside the declared writes, in either run, was written without declaration.
2. A declared write that differs between the runs depends on more than the declared reads. The zones of the tensors are
   poisoned one by one, then ever smaller boxes, until the bounding box of the undeclared reads is known.
3. What is declared as written, but changed in neither run, is not written.

A value that is loaded and then discarded is not detected, but cannot race either. A value that is written back
unchanged is not detected either, and can race.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from interlace.core.errors import FootprintError
from interlace.executors.footprint.items import (
    FootprintItem,
    FootprintRun,
    build_runs,
    make_out_of_bounds_error,
    make_undeclared_error,
    make_unwritten_error,
)
from interlace.executors.footprint.memory import ZONE_LOCATIONS, GuardedMemory, MegakernelMemory, select_memories
from interlace.graph.access import Access
from interlace.graph.tensor import Region, Tensor

_MARK = 0.0123  # value of elements that are to be written


class _Zone:
    """Memory of a tensor, or a guard zone before or after it, as integers: equal means equal bits.

    Attributes:
        location: one of ``ZONE_LOCATIONS``.
        bits, extent: the memory, and the box of all of it.
        base_values: contents in a base run, in the shape of ``bits``.
    """

    def __init__(self, tensor: Tensor, place: str, bits: Any, mark: int | None) -> None:
        self.tensor, self.location, self.bits = tensor, place, bits
        self.extent = Region(tensor.name, (0,) * bits.ndim, tuple(bits.shape))
        self.base_values: Any = None
        self._mark = mark

    def compute_regions(self, item: FootprintItem, accesses: Sequence[Access]) -> list[Region]:
        """Return the regions of this zone that an item declares."""
        return item.compute_regions(accesses, self.tensor.name) if self.location == ZONE_LOCATIONS[-1] else []

    def fill(self, item: FootprintItem, poison: Region | None) -> None:
        """Fill declared reads with their inputs, and the rest with NaN within a box and a mark in written tensors."""
        self.bits.copy_(self.base_values)
        if self._mark is not None:
            self.bits.fill_(self._mark)
        if poison is not None:
            dtype = self.tensor.dtype
            self.bits[poison.slices] = dtype.poison - (1 << 8 * dtype.itemsize)  # as a signed integer
        for region in self.compute_regions(item, item.op.reads):
            self.bits[region.slices] = self.base_values[region.slices]


class _PoisonedMemory:
    """Guarded memory whose zones can be poisoned."""

    def __init__(self, memory: GuardedMemory) -> None:
        import torch

        self._torch, self._items, self._memory, items = torch, memory.items, memory, memory.items
        written = {a.tensor for a in items[0].op.writes}
        self.zones: list[_Zone] = []
        for block in self._memory.blocks:
            t, dtype = block.tensor, block.memory.dtype
            mark = int(self._view_bits(torch.full((1,), _MARK, dtype=dtype))) if t.name in written else None
            for place, part in zip(ZONE_LOCATIONS, block.split_memory(block.memory), strict=True):
                self.zones.append(_Zone(t, place, self._view_bits(part), mark))

    def _view_bits(self, values: Any) -> Any:
        return values.view(self._torch.int32 if values.element_size() == 4 else self._torch.int16)

    def set_inputs(self, kind: str) -> None:
        """Set the inputs to those of a kind."""
        zones = iter(self.zones)
        for block, values in zip(self._memory.blocks, self._memory.make_inputs(kind), strict=True):
            for part in block.split_memory(values):
                next(zones).base_values = self._view_bits(part)

    def execute(self, row: int, poison: Mapping[_Zone, Region]) -> tuple[list[Any], list[Any]]:
        """Return all zones before and after one item."""
        for zone in self.zones:
            zone.fill(self._items[row], poison.get(zone))
        before = [zone.bits.clone() for zone in self.zones]
        self._memory.execute(row)
        return before, [zone.bits.clone() for zone in self.zones]

    def check(self, run: FootprintRun) -> list[Any]:
        """Raise FootprintError if an item touches anything other than it declares.

        Returns:
            Masks of the NaN elements of each region that the item writes.
        """
        item, row = run.item, run.row
        runs = [*self.execute(row, {}), *self.execute(row, {zone: zone.extent for zone in self.zones})]
        still = [(a == b) & (c == d) for a, b, c, d in zip(*runs, strict=True)]
        base, poisoned = runs[1], runs[3]
        declared = [(i, r) for i, zone in enumerate(self.zones) for r in zone.compute_regions(item, item.op.writes)]
        for i, zone in enumerate(self.zones):
            changed = ~still[i]
            for region in zone.compute_regions(item, item.op.writes):
                changed[region.slices] = False
            if changed.any():
                raise _make_undeclared_error(run, "writes", zone, _compute_bounding_box(zone, changed))

        def differs(after: list[Any]) -> bool:
            """Return whether declared writes that are written at all differ from the base run."""
            return any(((after[i] != base[i]) & ~still[i])[r.slices].any() for i, r in declared)

        if differs(poisoned):
            raise self._find_undeclared_read(run, differs)
        for i, region in declared:
            left = self._torch.zeros_like(still[i])
            left[region.slices] = still[i][region.slices]
            for r in self.zones[i].compute_regions(item, item.op.reads):
                left[r.slices] = False  # an update in place may leave a value unchanged
            if left.any():
                raise make_unwritten_error(run, region, _compute_bounding_box(self.zones[i], left))
        dtypes = {block.tensor.name: block.memory.dtype for block in self._memory.blocks}
        return [self._torch.isnan(base[i].view(dtypes[r.tensor])[r.slices]) for i, r in declared]

    def _find_undeclared_read(self, run: FootprintRun, differs: Callable[[list[Any]], bool]) -> FootprintError:
        """Return the error for an undeclared read, found by poisoning zones one by one, then boxes of a zone."""
        for zone in self.zones:

            def matters(box: Region, zone: _Zone = zone) -> bool:
                return differs(self.execute(run.row, {zone: box})[1])

            if matters(zone.extent):
                return _make_undeclared_error(run, "reads", zone, _narrow_box(zone.extent, matters))
        return FootprintError(f"{run} reads something that no single access map lacks; compare them all")


def check_by_poison(
    items: Sequence[FootprintItem], device: str, seed: int, progress: Callable[[int, int], None]
) -> None:
    """Run items on poisoned memory, on inputs of every kind.

    Raises:
        FootprintError: an item touches what it does not declare, does not write all that it declares, or produces NaN
            from inputs of every kind.
    """
    bodies = select_memories(items[0].op, device)
    whole = [item for item in items if item.is_whole]
    each = [
        whole if body is MegakernelMemory else items for body in bodies
    ]  # CUDA source of a tile takes whole tiles only
    total, before = sum(len(build_runs(some)) for some in each), 0
    for body, some in zip(bodies, each, strict=True):
        _check_body(_PoisonedMemory(body(some, device, seed)), some, partial(_report_progress, progress, before, total))
        before += len(build_runs(some))


def _report_progress(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _check_body(memory: _PoisonedMemory, items: Sequence[FootprintItem], progress: Callable[[int], None]) -> None:
    """Run the items of one body; see ``check_by_poison``."""
    hidden: list[list[Any]] = [[] for _ in items]  # elements that were NaN in every run so far
    kind = ""
    for done, run in enumerate(build_runs(items), 1):
        if run.kind != kind:
            kind = run.kind
            memory.set_inputs(kind)
        nan, old = memory.check(run), hidden[run.row]
        hidden[run.row] = [a & b for a, b in zip(old, nan, strict=True)] if old else nan
        progress(done)
    for item, masks in zip(items, hidden, strict=True):
        if any(mask.any() for mask in masks):
            raise FootprintError(f"{item} makes NaN of finite inputs of every kind, which hides what it reads; fix it")


def _make_undeclared_error(run: FootprintRun, verb: str, zone: _Zone, box: Region) -> FootprintError:
    if zone.location != ZONE_LOCATIONS[-1]:
        return make_out_of_bounds_error(run, verb, f"{zone.location} of {zone.tensor}")
    return make_undeclared_error(run, verb, zone.tensor, box)


def _narrow_box(box: Region, matters: Callable[[Region], bool]) -> Region:
    """Return the bounding box of the elements whose poison matters, by bisection: two searches per dimension."""

    def part(d: int, lo: int, hi: int) -> Region:
        return replace(box, lo=(*box.lo[:d], lo, *box.lo[d + 1 :]), hi=(*box.hi[:d], hi, *box.hi[d + 1 :]))

    for d in range(len(box.lo)):
        lo, hi = box.lo[d], box.hi[d]
        hi = lo + 1 + bisect_left(range(lo + 1, hi), True, key=lambda x: not matters(part(d, x, hi)))
        lo += bisect_left(range(lo + 1, hi), True, key=lambda x: matters(part(d, lo, x)))
        box = part(d, lo, hi)
    return box


def _compute_bounding_box(zone: _Zone, mask: Any) -> Region:
    at = mask.nonzero()
    return Region(zone.tensor.name, tuple(at.amin(0).tolist()), tuple((at.amax(0) + 1).tolist()))
