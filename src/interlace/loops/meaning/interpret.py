"""Interpreter of kernels in NumPy, before and after the rewrite.

Blocks run one after another, each with fresh shared memory and registers full of NaN. All threads of a scope are one
coroutine; iterations of a loop over threads come in any order. A rewritten kernel runs its barriers. An asynchronous
copy turns its destination into NaN when it is issued and lands at some later moment, at the latest when nothing else
can advance. Loader and consumers alternate. The seed determines order and moments. A wait that cannot end raises
``BarrierError``.

Arithmetic is fp32; writes round to the dtype of their destination.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np
import numpy.typing as npt

from interlace.core.errors import BarrierError, PipelineError
from interlace.core.rounding import round_to
from interlace.loops.ir.index import Var, evaluate, is_true
from interlace.loops.ir.nest import iterate_blocks, split_block_loops
from interlace.loops.ir.statements import (
    WARP,
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Copy,
    ElectionScope,
    ElectOne,
    FenceBarrierInit,
    FenceProxy,
    For,
    If,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    LoopKind,
    Matmul,
    MemorySpace,
    Pointwise,
    Reduce,
    ReduceOp,
    Role,
    Section,
    Stmt,
    Store,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.values import Apply, Box, Coord, FromIndex, ReadBox, Scalar, Value
from interlace.loops.meaning.arithmetic import OPERATIONS, Floats
from interlace.loops.meaning.mbarrier import MBarrier
from interlace.loops.rules.check import check_sizes

#: A coroutine; while blocked, it yields a description of what it waits for.
Task = Generator[str, None, None]


def interpret(
    kernel: LoopKernel, inputs: Mapping[str, npt.ArrayLike], sizes: Mapping[str, int] | None = None, *, seed: int = 0
) -> dict[str, Floats]:
    """Run ``kernel`` and return its outputs, NaN where nothing was written.

    Extents that follow from the shape of an input may be missing from ``sizes``.

    Raises:
        PipelineError: an input is missing or of another shape, or extents break a rule; a box reaches over the end of
            a tile; two iterations of a loop over threads write the same element.
        BarrierError: a wait cannot complete, or a barrier is used that does not exist.
    """
    arrays = {t.name: np.asarray(inputs[t.name], np.float32) for t in kernel.tensors if t.name in inputs}
    known = _find_sizes(kernel, arrays) | dict(sizes or {})
    check_sizes(kernel, known)
    memory: dict[str, Floats] = {}
    for tensor in kernel.tensors:
        if tensor.memory is not MemorySpace.GLOBAL:
            continue
        shape = tuple(evaluate(n, known) for n in tensor.shape)
        if tensor.is_written:
            memory[tensor.name] = np.full(shape, np.nan, np.float32)
        elif tensor.name not in arrays or arrays[tensor.name].shape != shape:
            got = arrays[tensor.name].shape if tensor.name in arrays else None
            raise PipelineError(f"kernel {kernel.name!r}: input {tensor.name!r} has shape {got}, {shape} is needed")
        else:
            memory[tensor.name] = round_to(arrays[tensor.name], tensor.dtype)
    with np.errstate(all="ignore"):
        random = Random(seed)
        for block in iterate_blocks(kernel, known):
            _run_block(kernel, known | block, memory, random, {})
    return {t.name: memory[t.name] for t in kernel.tensors if t.is_written}


def interpret_block(
    kernel: LoopKernel, values: Mapping[str, int], memory: Mapping[str, Floats], origins: Mapping[str, tuple[int, ...]]
) -> None:
    """Run one block.

    Args:
        values: values of the block loops' variables and of the run-time extents.
        memory: the part of every global tensor that the block touches; outputs are written in place.
        origins: origins of those parts.
    """
    with np.errstate(all="ignore"):
        _run_block(kernel, values, memory, Random(0), origins)


def _find_sizes(kernel: LoopKernel, arrays: Mapping[str, Floats]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tensor in kernel.tensors:
        if tensor.name in arrays and arrays[tensor.name].ndim == len(tensor.shape):
            pairs = zip(tensor.shape, arrays[tensor.name].shape, strict=True)
            found |= {n.name: extent for n, extent in pairs if isinstance(n, Var)}
    return found


def _run_block(
    kernel: LoopKernel,
    values: Mapping[str, int],
    memory: Mapping[str, Floats],
    random: Random,
    origins: Mapping[str, tuple[int, ...]],
) -> None:
    block = _ThreadBlock(kernel, memory, random, origins)
    block.drive([block.run(split_block_loops(kernel)[1], dict(values), kernel.block_threads)])
    block.finish()


@dataclass
class _Copy:
    """A copy in flight: its pending writes, and the effect of its completion on a barrier."""

    writes: list[tuple[Box, dict[str, int], Floats]]
    barrier: tuple[str, int]
    bytes: int
    arrivals: int


class _ThreadBlock:
    """One block: its shared memory, registers, barriers, and copies in flight."""

    def __init__(
        self,
        kernel: LoopKernel,
        memory: Mapping[str, Floats],
        random: Random,
        origins: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.kernel = kernel
        self.origins = origins
        self.tensors = {t.name: t for t in kernel.tensors}
        self.random = random
        self.memory = dict(memory)  # the global arrays themselves, and the block's own tiles
        for t in kernel.tensors:
            if t.memory is not MemorySpace.GLOBAL:
                self.memory[t.name] = np.full((t.stages or 1, *t.tile), np.nan, np.float32)
        self.barriers: dict[str, list[MBarrier | None]] = {}
        self.copies: list[_Copy] = []
        self.uncommitted: list[tuple[Box, dict[str, int], Floats]] = []
        self.events = 0
        self.iteration: tuple[str, int] | None = None  # running loop over threads and its iteration
        self.claims: dict[str, npt.NDArray[np.int64]] = {}  # by tensor: the iteration that wrote each element

    def drive(self, tasks: list[Task]) -> None:
        """Run coroutines to completion in a random order."""
        while tasks:
            before, blocked = self.events, []
            for task in self.random.sample(tasks, len(tasks)):
                if self.copies and self.random.random() < 0.25:
                    self._land()
                try:
                    blocked.append(next(task))
                except StopIteration:
                    tasks.remove(task)
                    self.events += 1
            if tasks and self.events == before:
                if not self.copies:
                    raise BarrierError(f"kernel {self.kernel.name!r}: {'; '.join(blocked)}: nothing can complete it")
                self._land()

    def finish(self) -> None:
        """End the block; copies still in flight would write into memory that others use."""
        if self.copies or self.uncommitted:
            raise BarrierError(f"kernel {self.kernel.name!r}: a block ends while copies are under way; wait for them")

    def run(self, body: tuple[Stmt, ...], env: dict[str, int], threads: int) -> Task:
        """Run the statements of one scope of ``threads`` threads."""
        position = 0
        while position < len(body):
            stmt = body[position]
            position += 1
            match stmt:
                case For() if stmt.kind is LoopKind.THREAD:
                    yield from self._run_thread_loop(stmt, env)
                case For():
                    for value in range(evaluate(stmt.start, env), evaluate(stmt.stop, env)):
                        env[stmt.var] = value
                        yield from self.run(stmt.body, env, threads)
                case If():
                    if is_true(stmt.condition, env):
                        yield from self.run(stmt.body, env, threads)
                case Section():
                    yield from self.run(stmt.body, env, threads)
                case ElectOne():
                    elected = 1 if stmt.per is ElectionScope.SCOPE else threads // WARP
                    yield from self.run(stmt.body, env, elected)
                case Role():
                    roles = [stmt]
                    while position < len(body) and isinstance(following := body[position], Role):
                        roles.append(following)
                        position += 1
                    self.drive([self.run(role.body, dict(env), role.threads) for role in roles])
                case WaitParity():
                    name, slot = self._find_slot(stmt.barrier, env)
                    parity = evaluate(stmt.parity, env)
                    while not self._find_barrier(name, slot).can_pass(parity):
                        yield f"wait {name}{{{slot}}}, parity {parity}"
                case _:
                    self._execute(stmt, env, threads)

    def _run_thread_loop(self, loop: For, env: dict[str, int]) -> Task:
        """Run iterations in a random order, one thread each; no iteration may write another's elements."""
        order = list(range(evaluate(loop.start, env), evaluate(loop.stop, env)))
        self.random.shuffle(order)
        self.claims = {}
        for value in order:
            env[loop.var] = value
            self.iteration = (loop.var, value)
            yield from self.run(loop.body, env, 1)
        self.iteration = None

    def _execute(self, stmt: Stmt, env: dict[str, int], threads: int) -> None:
        """Execute a statement that never blocks."""
        match stmt:
            case Let():
                env[stmt.var] = evaluate(stmt.value, env)
            case Load():
                self._load(stmt, env)
            case Store():
                self._write(stmt.dst, env, self._read(stmt.src, env))
            case Pointwise():
                value = self._evaluate(stmt.value, env, stmt.dst.shape)
                self._write(stmt.dst, env, np.broadcast_to(value, stmt.dst.shape))
            case Reduce():
                terms = np.broadcast_to(self._evaluate(stmt.value, env, stmt.shape), stmt.shape)
                before = self._read(stmt.dst, env)
                if stmt.op is ReduceOp.SUM:
                    after = before + np.sum(terms, axis=stmt.axes, keepdims=True, dtype=np.float32)
                else:
                    after = np.maximum(before, np.max(terms, axis=stmt.axes, keepdims=True))
                self._write(stmt.dst, env, after)
            case Matmul():
                product = self._read(stmt.a, env) @ self._read(stmt.b, env).T
                self._write(stmt.acc, env, self._read(stmt.acc, env) + product)
            case AllocBarrier():
                self.barriers[stmt.name] = [None] * stmt.slots
            case InitBarrier():
                self.barriers[stmt.name] = [MBarrier.initialise(stmt.count) for _ in self.barriers[stmt.name]]
            case Invalidate():
                self.barriers[stmt.name] = [None] * len(self.barriers[stmt.name])
            case ArriveExpect():
                self._update_barrier(
                    *self._find_slot(stmt.barrier, env), lambda b: b.arrive(threads, stmt.bytes * threads)
                )
            case Arrive():
                self._update_barrier(*self._find_slot(stmt.barrier, env), lambda b: b.arrive(threads))
            case ArriveCopies():
                self.copies.append(_Copy(self.uncommitted, self._find_slot(stmt.barrier, env), 0, threads))
                self.uncommitted = []
            case FenceBarrierInit() | FenceProxy() | SyncScope():
                pass  # a scope is one coroutine, and memory is one array
            case _:
                raise PipelineError(f"no meaning for {type(stmt).__name__}")

    def _load(self, stmt: Load, env: dict[str, int]) -> None:
        values = self._read(stmt.src, env).copy()
        if stmt.by is Copy.PLAIN or (stmt.barrier is None and not self.barriers):
            self._write(stmt.dst, env, values)
            return
        poison = np.full(values.shape, np.nan, np.float32)
        self._write(stmt.dst, env, poison)
        write = (stmt.dst, dict(env), values)
        if stmt.barrier is None:
            self.uncommitted.append(write)
            return
        nbytes = prod(stmt.dst.shape) * self.tensors[stmt.dst.tensor].dtype.itemsize
        self.copies.append(_Copy([write], self._find_slot(stmt.barrier, env), nbytes, 0))

    def _land(self) -> None:
        """Complete one random copy in flight: write its data and update its barrier."""
        copy = self.copies.pop(self.random.randrange(len(self.copies)))
        for box, env, values in copy.writes:
            self._write(box, env, values)
        self._update_barrier(
            *copy.barrier, lambda b: b.arrive(copy.arrivals) if copy.arrivals else b.complete(copy.bytes)
        )

    def _find_slot(self, barrier: BarrierSlot, env: dict[str, int]) -> tuple[str, int]:
        return barrier.name, evaluate(barrier.slot, env)

    def _find_barrier(self, name: str, slot: int) -> MBarrier:
        slots = self.barriers.get(name, [])
        barrier = slots[slot] if 0 <= slot < len(slots) else None
        if barrier is None:
            raise BarrierError(f"kernel {self.kernel.name!r}: {name}{{{slot}}} is used but not initialised")
        return barrier

    def _update_barrier(self, name: str, slot: int, change: Callable[[MBarrier], MBarrier]) -> None:
        after = change(self._find_barrier(name, slot))
        if after.pending < 0:
            raise BarrierError(
                f"kernel {self.kernel.name!r}: {name}{{{slot}}} gets more than its {after.needed} arrivals in a phase"
            )
        self.barriers[name][slot] = after
        self.events += 1

    def _evaluate(self, value: Value, env: dict[str, int], shape: tuple[int, ...]) -> Floats:
        match value:
            case Scalar():
                return np.asarray(value.number, np.float32)
            case FromIndex():
                return np.asarray(evaluate(value.index, env), np.float32)
            case Coord():
                along = [1] * len(shape)
                along[value.axis] = shape[value.axis]
                return np.arange(shape[value.axis], dtype=np.float32).reshape(along)
            case ReadBox():
                return self._read(value.box, env)
        assert isinstance(value, Apply)
        return OPERATIONS[value.op](*(self._evaluate(a, env, shape) for a in value.args))

    def _view(self, box: Box, env: dict[str, int]) -> tuple[Floats, tuple[slice, ...], tuple[slice, ...]]:
        """Return the array, the part of it that the box covers, and that part within the box."""
        array = self.memory[box.tensor]
        tile = self.tensors[box.tensor].memory is not MemorySpace.GLOBAL
        if tile:
            array = array[0 if box.slot is None else evaluate(box.slot, env)]
        there, here = [], []
        begins = self.origins.get(box.tensor, (0,) * array.ndim)
        for index, n, extent, begin in zip(box.origin, box.shape, array.shape, begins, strict=True):
            origin = evaluate(index, env) - begin
            if tile and not 0 <= origin <= extent - n:
                raise PipelineError(
                    f"kernel {self.kernel.name!r}: a box of tile {box.tensor!r} covers {origin} .. {origin + n - 1} "
                    f"of 0 .. {extent - 1}; only global tensors clip"
                )
            low, high = min(max(origin, 0), extent), min(max(origin + n, 0), extent)
            there.append(slice(low, high))
            here.append(slice(low - origin, high - origin) if low < high else slice(0, 0))
        return array, tuple(there), tuple(here)

    def _read(self, box: Box, env: dict[str, int]) -> Floats:
        array, there, here = self._view(box, env)
        part = array[there]
        if part.shape == box.shape:
            return part
        values = np.zeros(box.shape, np.float32)
        if part.size:
            values[here] = part
        return values

    def _write(self, box: Box, env: dict[str, int], values: Floats) -> None:
        array, there, here = self._view(box, env)
        if self.iteration is not None:
            self._claim(box.tensor, array.shape, there, *self.iteration)
        array[there] = round_to(values.reshape(box.shape)[here], self.tensors[box.tensor].dtype)

    def _claim(self, name: str, shape: tuple[int, ...], there: tuple[slice, ...], loop: str, iteration: int) -> None:
        """Check that no other iteration of a loop over threads wrote these elements, and claim them."""
        if name not in self.claims:
            self.claims[name] = np.full(shape, -1, np.int64)
        claimed = self.claims[name][there]
        others = claimed[(claimed >= 0) & (claimed != iteration)]
        if others.size:
            raise PipelineError(
                f"kernel {self.kernel.name!r}: iterations {others[0]} and {iteration} of loop {loop!r} over threads "
                f"write the same element of {name!r}; give each its own"
            )
        claimed[...] = iteration
