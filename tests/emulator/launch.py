"""Launch an emitted kernel on the CPU; the result is its outputs and faults.

library = build([emit_kernel(lower(loops), H200)])
run = launch(library, 0, {"x": x}, {"n": 1000}, seed=1)
run.outputs["y"], run.faults
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np
import numpy.typing as npt

from interlace.core.dtypes import DType, bf16, fp16
from interlace.core.rounding import round_to
from interlace.loops.cuda.emit import EmittedKernel
from interlace.loops.cuda.rules import TensorMapSpec
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import MemorySpace
from interlace.loops.meaning.arithmetic import Floats

from .build import Library
from .items import Sync

_DIMENSIONS = 4  # of a tensor map (``copies.cpp``)
#: Kinds of faults, in the order of ``Kind`` in ``machine.h``.
KINDS = ("race", "proxy", "unwritten", "bounds", "barrier", "deadlock", "pending", "diverged", "trap", "setup")
MOST_FAULTS = 64


class _Fault(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("block", ctypes.c_int),
        ("at", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("text", ctypes.c_char * 200),
    ]


class Buffer(ctypes.Structure):
    """Memory that a kernel may access. ``watched`` memory is written by some threads and read by others, in order."""

    _fields_ = [
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("written", ctypes.c_int),
        ("watched", ctypes.c_int),
        ("at", ctypes.c_uint64),
    ]


class Promises(ctypes.Structure):
    """Properties that a source guarantees: ``Promises`` of ``machine.h``."""

    _fields_ = [
        ("invalidates", ctypes.c_int),
        ("smaller", ctypes.c_int),
        ("begin", ctypes.c_uint32),
        ("end", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("blocks", ctypes.c_uint32),
    ]


class _Call(ctypes.Structure):
    """Blocks to run: ``Call`` of ``machine.h``."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("kernel", "grid", "blocks", "threads", "count", "found")),
        ("shared_bytes", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("shared", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("buffers", ctypes.POINTER(Buffer)),
        ("promises", ctypes.POINTER(Promises)),
        ("order", ctypes.POINTER(ctypes.c_int)),
        ("faults", ctypes.POINTER(_Fault)),
        ("image", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Grid:
    """Blocks of a kernel, with the arguments of its launch.

    Attributes:
        number: number of the kernel.
        blocks: number of blocks.
        threads: number of threads per block.
        parameters: addresses of the kernel's parameters.
    """

    number: int
    blocks: int
    threads: int
    parameters: Sequence[int]
    buffers: Sequence[Buffer]
    promises: Promises

    def call(self, library: Library, order: Sequence[int], seed: int) -> _Call:
        """Build a call that runs some of the blocks, one after another."""
        return _Call(
            kernel=self.number,
            grid=self.blocks,
            blocks=len(order),
            threads=self.threads,
            count=len(self.buffers),
            shared_bytes=library.texts[self.number].layout.total_bytes,
            seed=seed,
            shared=library.find_shared_memory(self.number),
            arguments=(ctypes.c_void_p * len(self.parameters))(*self.parameters),
            buffers=(Buffer * len(self.buffers))(*self.buffers),
            promises=ctypes.pointer(self.promises),
            order=(ctypes.c_int * max(len(order), 1))(*order),
            faults=(_Fault * MOST_FAULTS)(),
            image=library.image,
        )


@dataclass(frozen=True)
class Fault:
    """A fault that the emulator found.

    Attributes:
        kind: one of ``KINDS``.
        tiles: tiles and barriers that the bytes belong to, if they are in shared memory.
        places: addresses in the library at which it happened; for two accesses both, the earlier one first.
    """

    kind: str
    text: str
    block: int
    tiles: tuple[str, ...]
    places: tuple[int, ...]
    library: Library

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the source at ``places``."""
        found = map(self.library.line, self.places)
        return tuple(f"line {number}: {line}" for number, line in found if number)

    def __str__(self) -> str:
        where = f" of {' and '.join(self.tiles)}" if self.tiles else ""
        return "\n    ".join((f"{self.kind}{where}, block {self.block}: {self.text}", *self.lines))


@dataclass(frozen=True)
class Run:
    """Outputs (NaN where nothing was written) and faults, one for each pair of lines."""

    outputs: dict[str, Floats]
    faults: tuple[Fault, ...]

    @property
    def kinds(self) -> set[str]:
        """Kinds of all faults."""
        return {fault.kind for fault in self.faults}


def launch(
    library: Library,
    number: int,
    inputs: Mapping[str, npt.ArrayLike],
    sizes: Mapping[str, int],
    *,
    seed: int = 0,
    sync: Sync | None = None,
) -> Run:
    """Run all blocks of a kernel, one after another in a random order.

    Args:
        sizes: run-time extents.
        seed: seed of the schedule.
        sync: tables of a kernel for items of a plan; each block then runs an item.
    """
    emitted = library.texts[number]
    assert isinstance(emitted, EmittedKernel)
    kernel = emitted.kernel
    memory: dict[str, npt.NDArray[np.uint8]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in kernel.tensors:
        if tensor.memory is MemorySpace.GLOBAL:
            shapes[tensor.name] = tuple(evaluate(n, sizes) for n in tensor.shape)
            poison = np.full(shapes[tensor.name], np.nan, np.float32)
            values = poison if tensor.is_written else np.asarray(inputs[tensor.name], np.float32)
            assert values.shape == shapes[tensor.name], tensor.name
            memory[tensor.name] = _align(_encode(values, tensor.dtype))
    arguments: list[ctypes.Array[ctypes.c_char] | ctypes.c_void_p | ctypes.c_longlong] = []
    arguments += [ctypes.c_void_p(array.ctypes.data) for array in memory.values()]
    arguments += [_map(spec, memory, shapes, kernel.find_tensor(spec.tensor).dtype) for spec in emitted.maps]
    arguments += [ctypes.c_longlong(sizes[name]) for name in kernel.symbols]
    seen = [
        Buffer(array.ctypes.data, array.nbytes, kernel.find_tensor(name).is_written) for name, array in memory.items()
    ]
    if sync is not None:
        arguments.append(ctypes.create_string_buffer(sync.pack()))
        seen += [Buffer(array.ctypes.data, array.nbytes, True) for array in sync.arrays]
    grid = prod(max(evaluate(n, sizes), 0) for n in emitted.grid)
    pointers = [*map(ctypes.addressof, arguments)]
    blocks = Grid(number, grid, kernel.block_threads, pointers, seen, Promises(invalidates=True))
    faults = emulate(library, blocks, seed)
    outputs = {
        t.name: _decode(memory[t.name], t.dtype).reshape(shapes[t.name])
        for t in kernel.tensors
        if t.name in memory and t.is_written
    }
    return Run(outputs, faults)


def emulate(library: Library, grid: Grid, seed: int) -> tuple[Fault, ...]:
    """Run all blocks, one after another in an order that the seed determines, and return the faults."""
    call = grid.call(library, Random(seed).sample(range(grid.blocks), grid.blocks), seed)
    library.handle.emulate(ctypes.byref(call), None)
    return _faults(library, call)


def emulate_beside(copies: Sequence[Library], grid: Grid, seed: int) -> tuple[Fault, ...]:
    """Run all blocks concurrently, each in a copy of the library, and return the faults.

    The blocks take turns, which the seed determines.
    """
    calls = [grid.call(copy, [n], seed * grid.blocks + n) for n, copy in enumerate(copies)]
    copies[0].handle.emulate_beside(
        grid.blocks,
        (ctypes.c_void_p * grid.blocks)(*(ctypes.cast(copy.handle.emulate, ctypes.c_void_p).value for copy in copies)),
        (ctypes.POINTER(_Call) * grid.blocks)(*map(ctypes.pointer, calls)),
        ctypes.c_uint64(seed),
    )
    return tuple(fault for copy, call in zip(copies, calls, strict=True) for fault in _faults(copy, call))


def _faults(library: Library, call: _Call) -> tuple[Fault, ...]:
    return tuple(_fault(library, call.kernel, call.faults[n]) for n in range(call.found))


def _fault(library: Library, number: int, found: _Fault) -> Fault:
    tiles = []
    layout = library.texts[number].layout
    there = [p for p in layout.placements if p.slot_bytes]
    for placed in sorted(there, key=lambda p: p.offset_bytes) if found.bytes else ():
        slot, inside = divmod(found.at - placed.offset_bytes, placed.slot_bytes)
        if 0 <= slot < placed.slots:
            tiles.append(f"{placed.name}{{{slot}}} byte {inside}")
    places = found.line, found.other_line
    return Fault(KINDS[found.kind], found.text.decode(), found.block, tuple(tiles), places, library)


def _map(
    spec: TensorMapSpec,
    memory: Mapping[str, npt.NDArray[np.uint8]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: DType,
) -> ctypes.Array[ctypes.c_char]:
    shape = shapes[spec.tensor]
    packed = tensor_map(memory[spec.tensor].ctypes.data, shape, dtype.itemsize, spec.box, swizzled=spec.swizzled)
    return ctypes.create_string_buffer(packed, 128)


def tensor_map(
    address: int,
    shape: Sequence[int],
    itemsize: int,
    box: Sequence[int],
    *,
    swizzled: bool,
    strides: Sequence[int] | None = None,
    steps: Sequence[int] = (),
) -> bytes:
    """Return the 128 bytes of a tensor map (``Map`` of ``copies.cpp``); without strides, rows are contiguous."""
    if strides is None:
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def fill(values: Sequence[int], value: int) -> list[int]:
        """Return the values from the innermost dimension out, as many as a map has dimensions."""
        return [*reversed(values), *(value,) * (_DIMENSIONS - len(values))]

    numbers = [address, *fill([stride * itemsize for stride in strides], 0), len(shape), itemsize, int(swizzled)]
    numbers += [*fill(shape, 1), *fill(box, 1), *fill(steps or (1,) * len(shape), 1)]
    return struct.pack("<5Q15I", *numbers).ljust(128, b"\0")


def _align(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return the bytes of ``values`` at a multiple of 256, like device memory."""
    room = np.empty(values.nbytes + 256, np.uint8)
    first = -room.ctypes.data % 256
    out = room[first : first + values.nbytes]
    out[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return out


def _encode(values: Floats, dtype: DType) -> npt.NDArray[np.generic]:
    if dtype == bf16:
        return (round_to(values, bf16).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(np.float16 if dtype == fp16 else np.float32)


def _decode(memory: npt.NDArray[np.uint8], dtype: DType) -> Floats:
    if dtype == bf16:
        return (memory.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return memory.view(np.float16 if dtype == fp16 else np.float32).astype(np.float32)
