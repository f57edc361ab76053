"""The rewrite rules for the statements of a loop body, common to both forms of the rewrite.

x_s = tma load x[...]    -->   wait x_s_full{slot}, parity ...    of a circular buffer; x_s is now x_s{slot}

w_s = tma load w[...]    -->   sync                               of any other tile: the simple form, in which
                               init w_s_full; sync                the barrier lives for one load
                               one thread: expect bytes, load
                               wait w_s_full{0}, parity 0
                               sync; invalidate w_s_full

t = x_s * 2              -->   sync; t = x_s{slot} * 2            if t lies in shared memory; a loop over threads
                               fence proxy; sync                  that writes shared memory is surrounded as a whole
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.loops.ir.index import Const
from interlace.loops.ir.statements import (
    AllocBarrier,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Block,
    Copy,
    FenceBarrierInit,
    FenceProxy,
    For,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    MemorySpace,
    Pointwise,
    Stmt,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.traverse import map_boxes, walk
from interlace.loops.ir.values import Box
from interlace.loops.rewrite.ring import CircularBuffer


@dataclass(frozen=True)
class Rings:
    """The circular buffers of a kernel by tensor name."""

    kernel: LoopKernel
    by_tensor: dict[str, CircularBuffer]

    def find_directly_in(self, loop: For) -> tuple[CircularBuffer, ...]:
        """Return the buffers whose load is directly in ``loop``, in program order."""
        tensors = [s.dst.tensor for s in loop.body if isinstance(s, Load)]
        return tuple(self.by_tensor[t] for t in tensors if t in self.by_tensor)

    def find_within(self, body: tuple[Stmt, ...]) -> tuple[CircularBuffer, ...]:
        """Return the buffers whose load is anywhere in ``body``, in program order."""
        tensors = [s.dst.tensor for s in walk(body) if isinstance(s, Load)]
        return tuple(self.by_tensor[t] for t in tensors if t in self.by_tensor)

    def rewrite_statement(self, stmt: Stmt) -> tuple[Stmt, ...]:
        """Rewrite a statement without nested ones, or a loop over threads as a whole."""
        if isinstance(stmt, Load) and stmt.dst.tensor in self.by_tensor:
            buffered = self.by_tensor[stmt.dst.tensor]
            return (buffered.wait_full(buffered.nest.flat),)
        stmt = self._assign_slots(stmt)
        if isinstance(stmt, Load) and self._is_shared(stmt.dst):
            return self._load_synchronously(stmt)
        if any(isinstance(s, Pointwise) and self._is_shared(s.dst) for s in walk((stmt,))):
            return SyncScope(), stmt, FenceProxy(), SyncScope()
        return (stmt,)

    def _is_shared(self, box: Box) -> bool:
        return self.kernel.find_tensor(box.tensor).memory is MemorySpace.SHARED

    def _assign_slots(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return replace(stmt, body=tuple(self._assign_slots(s) for s in stmt.body))
        return map_boxes(stmt, self._assign_slot)

    def _assign_slot(self, box: Box) -> Box:
        buffered = self.by_tensor.get(box.tensor)
        return box if buffered is None else replace(box, slot=buffered.find_slot(buffered.nest.flat))

    def _load_synchronously(self, load: Load) -> tuple[Stmt, ...]:
        tensor = self.kernel.find_tensor(load.dst.tensor)
        if load.by is Copy.PLAIN:
            return SyncScope(), load, FenceProxy(), SyncScope()
        name = f"{tensor.name}_full"
        barrier = BarrierSlot(name, Const(0))
        load = replace(load, barrier=barrier if load.by is Copy.TMA else None)
        copy: tuple[Stmt, ...] = (load, ArriveCopies(barrier))
        if load.by is Copy.TMA:
            copy = ArriveExpect(barrier, tensor.tile_bytes), load
        count = 1 if load.by is Copy.TMA else self.kernel.threads
        return (
            AllocBarrier(name, 1, tensor.name),
            SyncScope(),  # all reads of the tile in the previous iteration are done
            InitBarrier(name, count),
            FenceBarrierInit(),
            SyncScope(),
            *copy,
            WaitParity(barrier, Const(0)),
            *(() if load.by is Copy.TMA else (FenceProxy(),)),
            SyncScope(),
            Invalidate(name),
        )


def define_before(rings: tuple[CircularBuffer, ...]) -> tuple[Let, ...]:
    """Return the definitions needed before the nests of ``rings``, each name once."""
    return tuple(dict.fromkeys(let for b in rings for let in b.nest.define_before()))


def define_inside(rings: tuple[CircularBuffer, ...]) -> tuple[Let, ...]:
    """Return the definitions that begin the loop that loads ``rings``, each name once."""
    return tuple(dict.fromkeys(let for b in rings for let in b.nest.define_inside()))


def open_barriers(
    rings: tuple[CircularBuffer, ...], loading_threads: int, releasing_threads: int = 0
) -> tuple[Stmt, ...]:
    """Declare and initialise the barriers of ``rings``, and make them visible to all threads and the async proxy."""
    pairs = [b.open(loading_threads, releasing_threads) for b in rings]
    declared = tuple(stmt for d, _ in pairs for stmt in d)
    initialised = tuple(stmt for _, i in pairs for stmt in i)
    return *declared, *initialised, FenceBarrierInit(), SyncScope()


def close_barriers(rings: tuple[CircularBuffer, ...], *, empty: bool = False) -> tuple[Stmt, ...]:
    """Invalidate the barriers of ``rings`` once every thread is past its last wait.

    Where threads wrote stages themselves, a proxy fence orders those writes before bulk copies into whatever uses the
    memory next.
    """
    fence = () if all(b.is_by_tma for b in rings) else (FenceProxy(),)
    return *fence, SyncScope(), *(stmt for b in rings for stmt in b.close(empty=empty))
