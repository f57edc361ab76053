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
    Memory,
    Pointwise,
    Stmt,
    Sync,
    WaitParity,
)
from interlace.loops.ir.traverse import map_boxes, walk
from interlace.loops.ir.values import Box
from interlace.loops.rewrite.ring import Buffered


@dataclass(frozen=True)
class Rings:
    """The circular buffers of a kernel by tensor name."""

    kernel: LoopKernel
    by_tensor: dict[str, Buffered]

    def directly_in(self, loop: For) -> tuple[Buffered, ...]:
        """Return the buffers whose load is directly in ``loop``, in program order."""
        tensors = [s.dst.tensor for s in loop.body if isinstance(s, Load)]
        return tuple(self.by_tensor[t] for t in tensors if t in self.by_tensor)

    def within(self, body: tuple[Stmt, ...]) -> tuple[Buffered, ...]:
        """Return the buffers whose load is anywhere in ``body``, in program order."""
        tensors = [s.dst.tensor for s in walk(body) if isinstance(s, Load)]
        return tuple(self.by_tensor[t] for t in tensors if t in self.by_tensor)

    def statement(self, stmt: Stmt) -> tuple[Stmt, ...]:
        """Rewrite a statement without nested ones, or a loop over threads as a whole."""
        if isinstance(stmt, Load) and stmt.dst.tensor in self.by_tensor:
            buffered = self.by_tensor[stmt.dst.tensor]
            return (buffered.wait_full(buffered.nest.flat),)
        stmt = self._in_slots(stmt)
        if isinstance(stmt, Load) and self._shared(stmt.dst):
            return self._synchronous(stmt)
        if any(isinstance(s, Pointwise) and self._shared(s.dst) for s in walk((stmt,))):
            return Sync(), stmt, FenceProxy(), Sync()
        return (stmt,)

    def _shared(self, box: Box) -> bool:
        return self.kernel.tensor(box.tensor).memory is Memory.SHARED

    def _in_slots(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return replace(stmt, body=tuple(self._in_slots(s) for s in stmt.body))
        return map_boxes(stmt, self._in_slot)

    def _in_slot(self, box: Box) -> Box:
        buffered = self.by_tensor.get(box.tensor)
        return box if buffered is None else replace(box, slot=buffered.slot(buffered.nest.flat))

    def _synchronous(self, load: Load) -> tuple[Stmt, ...]:
        tensor = self.kernel.tensor(load.dst.tensor)
        if load.by is Copy.PLAIN:
            return Sync(), load, FenceProxy(), Sync()
        name = f"{tensor.name}_full"
        barrier = BarrierSlot(name, Const(0))
        load = replace(load, barrier=barrier if load.by is Copy.TMA else None)
        copy: tuple[Stmt, ...] = (load, ArriveCopies(barrier))
        if load.by is Copy.TMA:
            copy = ArriveExpect(barrier, tensor.tile_bytes), load
        count = 1 if load.by is Copy.TMA else self.kernel.threads
        return (
            AllocBarrier(name, 1, tensor.name),
            Sync(),  # all reads of the tile in the previous iteration are done
            InitBarrier(name, count),
            FenceBarrierInit(),
            Sync(),
            *copy,
            WaitParity(barrier, Const(0)),
            *(() if load.by is Copy.TMA else (FenceProxy(),)),
            Sync(),
            Invalidate(name),
        )


def names_before(rings: tuple[Buffered, ...]) -> tuple[Let, ...]:
    """Return the definitions needed before the nests of ``rings``, each name once."""
    return tuple(dict.fromkeys(let for b in rings for let in b.nest.before()))


def names_inside(rings: tuple[Buffered, ...]) -> tuple[Let, ...]:
    """Return the definitions that begin the loop that loads ``rings``, each name once."""
    return tuple(dict.fromkeys(let for b in rings for let in b.nest.inside()))


def open_barriers(rings: tuple[Buffered, ...], loading_threads: int, releasing_threads: int = 0) -> tuple[Stmt, ...]:
    """Declare and initialise the barriers of ``rings``, and make them visible to all threads and the async proxy."""
    pairs = [b.open(loading_threads, releasing_threads) for b in rings]
    declared = tuple(stmt for d, _ in pairs for stmt in d)
    initialised = tuple(stmt for _, i in pairs for stmt in i)
    return *declared, *initialised, FenceBarrierInit(), Sync()


def close_barriers(rings: tuple[Buffered, ...], *, empty: bool = False) -> tuple[Stmt, ...]:
    """Invalidate the barriers of ``rings`` once every thread is past its last wait.

    Where threads wrote stages themselves, a proxy fence orders those writes before bulk copies into whatever uses the
    memory next.
    """
    fence = () if all(b.by_tma for b in rings) else (FenceProxy(),)
    return *fence, Sync(), *(stmt for b in rings for stmt in b.close(empty=empty))
