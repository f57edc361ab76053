"""The check under the interpreter: every load and store is observed and compared with the item's declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from interlace.executors.footprint.items import (
    FootprintItem,
    FootprintRun,
    build_runs,
    make_out_of_bounds_error,
    make_undeclared_error,
    make_unwritten_error,
)
from interlace.executors.footprint.memory import GuardedBlock, LaunchMemory
from interlace.executors.footprint.observe import observe_accesses
from interlace.graph.access import Ints
from interlace.graph.tensor import Region


class _StrayAccess(BaseException):
    """Access outside all memory of the run. It might crash, so it ends the item before it happens."""


class _BlockAccesses:
    """The elements of one block that an item has touched so far.

    Attributes:
        written: flag for each element of the block, guards included.
        reads, writes: positions of accesses, counted from the tensor's first element; those in the guard before it are
            negative. Reads of what the item itself wrote before are excluded.
    """

    def __init__(self, block: GuardedBlock) -> None:
        self.block = block
        self.start = block.memory.data_ptr()
        self.end = self.start + block.memory.nbytes
        self.written = np.zeros(len(block.memory), bool)
        self.reads: list[Ints] = []
        self.writes: list[Ints] = []

    def record(self, verb: str, at: NDArray[np.uint64], width: int) -> None:
        """Record an access to these addresses, all of them in the block."""
        itemsize = self.block.tensor.dtype.itemsize
        # A pointer of another dtype may cover several elements.
        first = (at - np.uint64(self.start)).astype(np.int64)
        elements = np.unique(np.concatenate([(first + b) // itemsize for b in (*range(0, width, itemsize), width - 1)]))
        if verb == "writes":
            self.written[elements] = True
            self.writes.append(elements - self.block.pad)
        else:
            self.reads.append(elements[~self.written[elements]] - self.block.pad)

    def clear(self) -> None:
        """Restore the state before the first item."""
        self.written[:] = False
        self.reads, self.writes = [], []


def check_by_observation(
    items: Sequence[FootprintItem], device: str, seed: int, progress: Callable[[int, int], None]
) -> None:
    """Run items under the interpreter, on inputs of every kind.

    Raises:
        FootprintError: an item touches what it does not declare, or does not write all that it declares.
    """
    memory = LaunchMemory(items, device, seed)
    touched = [_BlockAccesses(block) for block in memory.blocks]
    tables = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in memory.list_tables()]

    def see(verb: str, at: NDArray[np.uint64], width: int) -> None:
        left = at
        for t in touched:
            inside = (left >= t.start) & (left + np.uint64(width) <= t.end)
            if inside.any():
                t.record(verb, left[inside], width)
                left = left[~inside]
        for start, end in tables:
            left = left[(left < start) | (left + np.uint64(width) > end)]
        if len(left):
            raise _StrayAccess(verb)

    all_runs, kind, inputs = build_runs(items), "", []
    for done, run in enumerate(all_runs, 1):
        if run.kind != kind:
            kind, inputs = run.kind, memory.make_inputs(run.kind)
            for block, values in zip(memory.blocks, inputs, strict=True):
                block.memory.copy_(values)
        for t in touched:
            t.clear()
        try:
            with observe_accesses(see):
                memory.execute(run.row)
        except _StrayAccess as stray:
            raise make_out_of_bounds_error(run, str(stray), "far from any tensor") from None
        _check_accesses(run, touched)
        for block, values in zip(memory.blocks, inputs, strict=True):  # restore inputs for the next item
            inside, given = (block.split_memory(m)[-1] for m in (block.memory, values))
            for region in run.item.compute_regions(run.item.op.writes, block.tensor.name):
                inside[region.slices] = given[region.slices]
        progress(done, len(all_runs))


def _check_accesses(run: FootprintRun, touched: Iterable[_BlockAccesses]) -> None:
    """Raise FootprintError if an item's accesses differ from its declarations; check writes first, then reads."""
    for verb in ("writes", "reads"):
        for t in touched:
            _check_declared(run, verb, t)
    for t in touched:
        _check_written(run, t)


def _check_declared(run: FootprintRun, verb: str, t: _BlockAccesses) -> None:
    """Raise FootprintError if something was touched that is not declared."""
    tensor, op = t.block.tensor, run.item.op
    found, accesses = (t.writes, op.writes) if verb == "writes" else (t.reads, op.reads)
    positions = np.concatenate([np.zeros(0, np.int64), *found])
    if (positions < 0).any():
        raise make_out_of_bounds_error(run, verb, f"before the start of {tensor}")
    if (positions >= prod(tensor.shape)).any():
        raise make_out_of_bounds_error(run, verb, f"past the end of {tensor}")
    at = np.stack(np.unravel_index(positions, tensor.shape), axis=1)
    for region in run.item.compute_regions(accesses, tensor.name):
        at = at[((at < region.lo) | (at >= region.hi)).any(axis=1)]
    if len(at):
        raise make_undeclared_error(run, verb, tensor, _compute_box(tensor.name, at))


def _check_written(run: FootprintRun, t: _BlockAccesses) -> None:
    """Raise FootprintError if a declared write is missing, unless it updates in place, where a value may stay."""
    tensor, item = t.block.tensor, run.item
    defined = t.written[t.block.pad : -t.block.pad].reshape(tensor.shape).copy()
    for region in item.compute_regions(item.op.reads, tensor.name):
        defined[region.slices] = True
    for region in item.compute_regions(item.op.writes, tensor.name):
        left = np.argwhere(~defined[region.slices])
        if len(left):
            raise make_unwritten_error(run, region, _compute_box(tensor.name, left + region.lo))


def _compute_box(tensor: str, at: Ints) -> Region:
    """Return the bounding box of elements, given by their indices."""
    return Region(tensor, tuple(at.min(0).tolist()), tuple((at.max(0) + 1).tolist()))
