"""The footprint check: does a body touch what its op declares, and nothing else?

Dependencies and proofs follow from access maps alone, so a body that touches more than its map says can race
under a plan that ``verify`` accepts. On a device, each item (a whole tile, then parts of its reduction) runs
alone, between guard zones. A body that reads elements 2:5 of x, but whose map declares 2:4:

    base run     ~ 0.7 0.9 1.3 0.6 1.1 0.8 ~    random numbers everywhere
    poisoned     . .   .   1.3 0.6 .   .   .    NaN outside the declared reads
    narrowed     ~ 0.7 0.9 1.3 0.6 .   0.8 ~    the smallest box of NaN with an effect

1. What changed outside the declared writes, in either run, was written without declaration.
2. A declared write that differs between the runs was made from more than the declared reads. The zones of the
   tensors are poisoned one by one, then ever smaller boxes, until the bounding box of what was read is known.
3. What is declared as written, but changed in neither run, is not written.

A value that is loaded and then discarded goes unseen, but cannot race either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from interlace.core.errors import FootprintError, GraphError
from interlace.executors.gpu import torch_dtype
from interlace.executors.options import Options
from interlace.executors.serial import SerialExecutor
from interlace.executors.table import Table, by_op
from interlace.graph.access import Access
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region, Tensor
from interlace.kernels.base import kernel_of
from interlace.planner.build import Choices, build

_FEW = 32  # grids of up to so many tiles are checked whole
_PARTS = 3  # a reduction is also checked in parts: a first, a middle and a last one
_MARK = 0.0123  # fills what is to be written; inputs lie in [0.5, 1.5), so no copy of them equals it
_PLACES = ("before the start", "behind the end", "inside")
_NAN = {"bf16": 0xFF95 - (1 << 16), "fp16": 0xFC15 - (1 << 16), "fp32": 0xFF95A5A5 - (1 << 32)}  # as integers


@dataclass(frozen=True)
class _Item:
    """What runs alone: a tile and a part of its reduction."""

    graph: Graph
    op: Op
    tile: int
    k_lo: int
    k_hi: int

    def __str__(self) -> str:
        whole = (self.k_lo, self.k_hi) == (0, self.op.k_extent)
        return self.op.tile_name(self.tile) + ("" if whole else f", k {self.k_lo}:{self.k_hi}")

    def region(self, access: Access) -> Region:
        return self.graph.region(self.op, access, self.tile, self.k_lo, self.k_hi)

    def regions(self, accesses: Sequence[Access], tensor: str) -> list[Region]:
        """What the item touches of one tensor through some accesses."""
        return [self.region(a) for a in accesses if a.tensor == tensor]


def check_footprint(
    graph: Graph, op: str, *, device: str = "reference", tiles: Sequence[int] | None = None, seed: int = 0
) -> None:
    """Check that the body of an op touches exactly what the op's access maps declare, tile by tile.

    Args:
        graph: holds the op.
        op: its name.
        device: "reference" checks that the NumPy reference asks for declared reads only and returns the
            declared writes in their shapes; a torch device ("cuda", or "cpu" for the Triton interpreter) runs
            the Triton body on poisoned memory. Inputs are uniform in [0.5, 1.5).
        tiles: linear tile numbers; by default all of a small grid, else corners, edges and a random few.
        seed: of the inputs and of that choice.

    Raises:
        FootprintError: the body touches something undeclared, or leaves out something declared; names the
            tile, the bounding box of the offending elements, and what to change.
        GraphError: no such op or tile, or the op has no body for the device.
        IntraOpRaceError: tiles of the op conflict by their very declarations.
        NoDeviceError: torch, triton or the device is missing.
    """
    target = graph.op(op)
    chosen = _sample(target, seed) if tiles is None else [int(t) for t in tiles]
    for tile in chosen:
        if not 0 <= tile < target.tiles:
            raise GraphError(f"op {op!r} has no tile {tile}; grid {target.grid} has 0..{target.tiles - 1}")
    items = [_Item(graph, target, tile, lo, hi) for tile in chosen for lo, hi in _k_ranges(target)]
    harness = _Harness(items, device, seed) if device != "reference" and items else None
    for row, item in enumerate(items):
        if harness:
            harness.check(row)
        else:
            _check_reference(item, np.random.default_rng(seed))


def _sample(op: Op, seed: int) -> list[int]:
    """All tiles of a small grid, else corners, middles of edges and faces, and a random few."""
    if op.tiles <= _FEW:
        return list(range(op.tiles))
    corners = product(*({0, n // 2, n - 1} for n in op.grid))
    few = np.random.default_rng(seed).choice(op.tiles, 8, replace=False).tolist()
    return sorted({*few, *(int(np.ravel_multi_index(at, op.grid)) for at in corners)})


def _k_ranges(op: Op) -> list[tuple[int, int]]:
    """The whole reduction, then its parts."""
    block, chunks = (op.reduction.block, op.reduction.chunks) if op.reduction else (1, 1)
    cuts = sorted({min(block * (chunks * p // _PARTS), op.k_extent) for p in range(_PARTS + 1)})
    return [(0, op.k_extent), *(pairwise(cuts) if len(cuts) > 2 else ())]


def _check_reference(item: _Item, random: np.random.Generator) -> None:
    """A reference cannot read what it does not get, so this is about what it asks for and returns."""
    op, reference = item.op, kernel_of(item.op).reference
    if reference is None:
        raise GraphError(f"op {op.name!r}: kernel {op.kernel!r} has no NumPy reference; give it one to check")
    moving = {a.arg: random.random(_extent(item.region(a))) + 0.5 for a in op.reads if a.uses_k}
    fixed = {a.arg: random.random(_extent(item.region(a))) + 0.5 for a in op.reads if not a.uses_k}
    try:
        acc = reference.accumulate(moving, op.parameters) if reference.accumulate else None
        found = reference.complete(op, item.tile, acc, fixed)
    except KeyError as error:
        raise FootprintError(
            f"{item}: the reference asks for {error}, but the op declares reads {sorted(moving)} over the "
            f"k-range, for accumulate, and {sorted(fixed)} otherwise, for finish; declare that one too"
        ) from error
    expected = {a.arg: _extent(item.region(a)) for a in op.writes}
    shapes = {arg: np.shape(value) for arg, value in found.items()}
    if shapes != expected:
        raise FootprintError(f"{item}: the reference returns {shapes}, its op declares {expected}; fix one")


class _Zone:
    """A tensor's memory, or a guard zone before or behind it, as integers: equal means equal bits.

    Attributes:
        place: one of _PLACES.
        bits, whole: the memory itself, and the box of all of it.
    """

    def __init__(self, tensor: Tensor, place: str, bits: Any, mark: int | None) -> None:
        self.tensor, self.place, self.bits = tensor, place, bits
        self.whole = Region(tensor.name, (0,) * bits.ndim, tuple(bits.shape))
        self._random, self._mark = bits.clone(), mark

    def regions(self, item: _Item, accesses: Sequence[Access]) -> list[Region]:
        """What an item declares of this zone."""
        return item.regions(accesses, self.tensor.name) if self.place == _PLACES[-1] else []

    def fill(self, item: _Item, poison: Region | None) -> None:
        """Random numbers where the item may read; elsewhere NaN in a box, and a mark where it may write."""
        self.bits.copy_(self._random)
        if self._mark is not None:
            self.bits.fill_(self._mark)
        if poison is not None:
            self.bits[poison.slices] = _NAN[self.tensor.dtype.name]
        for region in self.regions(item, item.op.reads):
            self.bits[region.slices] = self._random[region.slices]


class _Harness(SerialExecutor):
    """Runs chosen items of one op one at a time, on guarded memory."""

    def __init__(self, items: Sequence[_Item], device: str, seed: int) -> None:
        self._chosen, op = items, items[0].op
        names = tuple(dict.fromkeys(a.tensor for a in op.accesses))
        writes = {a.tensor for a in op.writes}
        tensors = tuple(items[0].graph.tensor(name) for name in names)
        # All memory is filled here, so an op that writes a part of a tensor is whole by itself.
        super().__init__(build(Graph(op.name, tensors, (op,), names, ()), Choices(1)), Options(device))
        torch = self._torch
        generator = torch.Generator(self._device).manual_seed(seed)
        self._zones: list[_Zone] = []
        self._values: dict[str, Any] = {}
        for t in tensors:
            size, dtype = prod(t.shape), torch_dtype(torch, t.dtype.name)
            pad = min(-(-size // 4096) * 4096, 1 << 22)  # a multiple of 4096 keeps the tensor aligned
            memory = (torch.rand(size + 2 * pad, generator=generator, device=self._device) + 0.5).to(dtype)
            before, inside, behind = memory.split([pad, size, pad])
            self._values[t.name] = inside.view(t.shape)
            integer = torch.int32 if t.dtype.itemsize == 4 else torch.int16
            mark = int(torch.full((1,), _MARK, dtype=dtype).view(integer)) if t.name in writes else None
            for place, part in zip(_PLACES, (before, behind, self._values[t.name]), strict=True):
                self._zones.append(_Zone(t, place, part.view(integer), mark))

    def _lower(self) -> Table:
        table = by_op(self.plan, self._chunked())  # row t is tile t
        rows = table.items[[item.tile for item in self._chosen]]
        rows[:, 4:6] = [(item.k_lo, item.k_hi) for item in self._chosen]
        return replace(table, items=rows)

    def _execute(self, row: int, poison: Mapping[_Zone, Region]) -> tuple[list[Any], list[Any]]:
        """All zones before and after one item."""
        for zone in self._zones:
            zone.fill(self._chosen[row], poison.get(zone))
        before = [zone.bits.clone() for zone in self._zones]
        current = self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with current, np.errstate(all="ignore"):  # the interpreter computes in NumPy, here with NaN
            arguments = self._arguments(self._chosen[row].op, self._values)
            self._items_launch(0, arguments, self._sync(0, row, 1), 1).run()
        return before, [zone.bits.clone() for zone in self._zones]

    def check(self, row: int) -> None:
        """Raise FootprintError if an item touches anything else than it declares."""
        item = self._chosen[row]
        runs = [*self._execute(row, {}), *self._execute(row, {zone: zone.whole for zone in self._zones})]
        still = [(a == b) & (c == d) for a, b, c, d in zip(*runs, strict=True)]
        base, poisoned = runs[1], runs[3]
        declared = [(i, r) for i, zone in enumerate(self._zones) for r in zone.regions(item, item.op.writes)]
        for i, zone in enumerate(self._zones):
            changed = ~still[i]
            for region in zone.regions(item, item.op.writes):
                changed[region.slices] = False
            if changed.any():
                raise FootprintError(_undeclared(item, "writes", zone, _bounding_box(zone, changed)))

        def differs(after: list[Any]) -> bool:
            """Whether declared writes, where they are writes at all, are other than in the base run."""
            return any(((after[i] != base[i]) & ~still[i])[r.slices].any() for i, r in declared)

        if differs(poisoned):
            raise FootprintError(self._undeclared_read(row, differs))
        for i, region in declared:
            values = base[i].view(self._values[region.tensor].dtype)
            if self._torch.isnan(values[region.slices]).any():
                raise FootprintError(f"{item} makes NaN of finite inputs, which hides what it reads; fix it")
            left = self._torch.zeros_like(still[i])
            left[region.slices] = still[i][region.slices]
            for r in self._zones[i].regions(item, item.op.reads):
                left[r.slices] = False  # updated in place, where a value may stay as it is
            if left.any():
                box = _bounding_box(self._zones[i], left)
                raise FootprintError(
                    f"{item} does not write all of {box}, but declares that it writes {region}; "
                    f"narrow the access map of {region.tensor!r}, or store all of it"
                )

    def _undeclared_read(self, row: int, differs: Callable[[list[Any]], bool]) -> str:
        """What a body reads without declaration, by poisoning zones one by one, then boxes of one."""
        for zone in self._zones:

            def matters(box: Region, zone: _Zone = zone) -> bool:
                return differs(self._execute(row, {zone: box})[1])

            if matters(zone.whole):
                return _undeclared(self._chosen[row], "reads", zone, _narrow(zone.whole, matters))
        return f"{self._chosen[row]} reads something that no single access map lacks; compare them all"


def _narrow(box: Region, matters: Callable[[Region], bool]) -> Region:
    """The bounding box of the elements whose poison matters, by bisection: two searches per dimension."""

    def part(d: int, lo: int, hi: int) -> Region:
        return replace(box, lo=(*box.lo[:d], lo, *box.lo[d + 1 :]), hi=(*box.hi[:d], hi, *box.hi[d + 1 :]))

    for d in range(len(box.lo)):
        lo, hi = box.lo[d], box.hi[d]
        hi = lo + 1 + bisect_left(range(lo + 1, hi), True, key=lambda x: not matters(part(d, x, hi)))
        lo += bisect_left(range(lo + 1, hi), True, key=lambda x: matters(part(d, lo, x)))
        box = part(d, lo, hi)
    return box


def _bounding_box(zone: _Zone, mask: Any) -> Region:
    at = mask.nonzero()
    return Region(zone.tensor.name, tuple(at.amin(0).tolist()), tuple((at.amax(0) + 1).tolist()))


def _extent(region: Region) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(region.lo, region.hi, strict=True))


def _undeclared(item: _Item, verb: str, zone: _Zone, box: Region) -> str:
    """The message for an access outside the declared regions: what, where, and what to change."""
    name, mask = zone.tensor.name, f"mask its {'loads' if verb == 'reads' else 'stores'}"
    if zone.place != _PLACES[-1]:
        return f"{item} {verb} memory {zone.place} of {zone.tensor}; {mask} at the tensor's edge"
    accesses = [a for a in (item.op.reads if verb == "reads" else item.op.writes) if a.tensor == name]
    declared = item.regions(accesses, name)
    if not declared:
        return f"{item} {verb} {box}, but the op declares no such access; add {name!r} to what it {verb}"
    where = f"{item} {verb} {box}, but declares only {' and '.join(map(str, declared))}"
    for whole in replace(item, k_lo=0, k_hi=item.op.k_extent).regions(accesses, name):
        if whole.intersect(box) == box:
            return f"{where}; the rest is for other parts of the reduction, so keep to tile.k_lo:tile.k_hi"
    sides = [(min(r.lo[d] for r in declared) - lo, f"below in dimension {d}") for d, lo in enumerate(box.lo)]
    sides += [(hi - max(r.hi[d] for r in declared), f"above in dimension {d}") for d, hi in enumerate(box.hi)]
    missing = " and ".join(f"{n} {side}" for n, side in sides if n > 0)
    return f"{where}; widen the access map of {name!r} by {missing or 'the gap'}, or {mask}"
