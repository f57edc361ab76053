"""One circular buffer during the rewrite: the names of its barriers, and the statements that fill and await a stage.

Worked example, four stages: step 9 uses slot ``9 % 4 = 1`` for the third time (rounds 0, 1, 2). Its full barrier is
waited for with parity ``9 // 4 % 2 = 0``. A loader that runs on its own first waits until the slot's round before
was released: parity ``(9 // 4 + 1) % 2 = 1`` of the empty barrier, which passes at once in round 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.loops.ir.index import Const, Index
from interlace.loops.ir.nest import Nest
from interlace.loops.ir.statements import (
    WARP,
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Copy,
    InitBarrier,
    Invalidate,
    Load,
    Ring,
    Stmt,
    WaitParity,
)
from interlace.loops.ir.traverse import substitute_box


@dataclass(frozen=True)
class Buffered:
    """A marked tensor, its load, the loops that it is carried through, and the bytes of one stage."""

    ring: Ring
    load: Load
    nest: Nest
    stage_bytes: int

    @property
    def full(self) -> str:
        """Barriers that say that a stage has arrived."""
        return f"{self.ring.tensor}_full"

    @property
    def empty(self) -> str:
        """Barriers that say that all consumers have released a stage; of a warp-specialised block."""
        return f"{self.ring.tensor}_empty"

    def slot(self, flat: Index) -> Index:
        """Where step ``flat`` lies in the ring."""
        return flat % self.ring.stages

    def parity(self, flat: Index) -> Index:
        """Parity of the phase that step ``flat`` completes."""
        return flat // self.ring.stages % 2

    @property
    def by_tma(self) -> bool:
        """Whether one thread fills a stage by a bulk copy, or all loading threads together."""
        return self.load.by is Copy.TMA

    def open(self, loading_threads: int, releasing_threads: int = 0) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """Declarations and initialisations of the barriers; ``releasing_threads`` if there are empty ones.

        One arrival of each warp, its lanes having met, is enough to release a stage. Where threads fill the stage, each
        reader arrives for itself: race checkers of the CUDA tools follow a barrier from thread to thread, but no
        warp's sync.
        """
        slots = self.ring.stages
        count = 1 if self.by_tma else loading_threads
        declared: list[Stmt] = [AllocBarrier(self.full, slots, self.ring.tensor)]
        initialised: list[Stmt] = [InitBarrier(self.full, count)]
        if releasing_threads:
            declared.append(AllocBarrier(self.empty, slots, self.ring.tensor))
            initialised.append(InitBarrier(self.empty, releasing_threads // (WARP if self.by_tma else 1)))
        return tuple(declared), tuple(initialised)

    def close(self, *, empty: bool = False) -> tuple[Stmt, ...]:
        """The end of the barriers' lifetimes."""
        return (Invalidate(self.full), Invalidate(self.empty)) if empty else (Invalidate(self.full),)

    def issue(self, flat: Index) -> tuple[Stmt, ...]:
        """Start the load of step ``flat`` and arrive on its full barrier."""
        slot = self.slot(flat)
        barrier = BarrierSlot(self.full, slot)
        # At the current step the loop variables stand as they are, which reads better than their recomputation.
        by = {} if flat == self.nest.flat else self.nest.variables(flat)
        load = replace(self.load, src=substitute_box(self.load.src, by), dst=replace(self.load.dst, slot=slot))
        match self.load.by:
            case Copy.TMA:
                return ArriveExpect(barrier, self.stage_bytes), replace(load, barrier=barrier)
            case Copy.CP_ASYNC:
                return load, ArriveCopies(barrier)
            case Copy.PLAIN:
                return load, Arrive(barrier)

    def wait_full(self, flat: Index) -> Stmt:
        """Wait until step ``flat`` has arrived."""
        return WaitParity(BarrierSlot(self.full, self.slot(flat)), self.parity(flat))

    def wait_empty(self, flat: Index) -> Stmt:
        """Wait until the slot of step ``flat`` may be overwritten."""
        return WaitParity(BarrierSlot(self.empty, self.slot(flat)), (flat // self.ring.stages + Const(1)) % 2)

    def release(self, flat: Index) -> Stmt:
        """Arrivals that say that the consumers are done with step ``flat``."""
        return Arrive(BarrierSlot(self.empty, self.slot(flat)))
