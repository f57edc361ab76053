"""One circular buffer during the rewrite: the names of its barriers, and the statements that fill and await a stage.

Worked example, four stages: step 9 uses slot ``9 % 4 = 1`` for the third time (rounds 0, 1, 2). The wait on its full
barrier has parity ``9 // 4 % 2 = 0``. A separate loader first waits until the slot's previous round was released:
parity ``(9 // 4 + 1) % 2 = 1`` of the empty barrier, which passes at once in round 0.
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
class CircularBuffer:
    """A marked tensor, its load, the loops that it is carried through, and the bytes of one stage."""

    ring: Ring
    load: Load
    nest: Nest
    stage_bytes: int

    @property
    def full_barrier(self) -> str:
        """Name of the barriers that signal that a stage has arrived."""
        return f"{self.ring.tensor}_full"

    @property
    def empty_barrier(self) -> str:
        """Name of the barriers that signal that all consumers have released a stage; warp-specialised blocks only."""
        return f"{self.ring.tensor}_empty"

    def find_slot(self, flat: Index) -> Index:
        """Return the slot of step ``flat`` in the ring."""
        return flat % self.ring.stages

    def find_parity(self, flat: Index) -> Index:
        """Return the parity of the phase that step ``flat`` completes."""
        return flat // self.ring.stages % 2

    @property
    def is_by_tma(self) -> bool:
        """True if one thread fills a stage by a bulk copy, False if all loading threads fill it together."""
        return self.load.by is Copy.TMA

    def open(self, loading_threads: int, releasing_threads: int = 0) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """Return declarations and initialisations of the barriers; ``releasing_threads`` if there are empty ones.

        One arrival per warp, after its lanes have converged, is enough to release a stage. Where threads fill the
        stage, each reader arrives itself: CUDA race checkers track a barrier from thread to thread, but not through a
        warp's sync.
        """
        slots = self.ring.stages
        count = 1 if self.is_by_tma else loading_threads
        declared: list[Stmt] = [AllocBarrier(self.full_barrier, slots, self.ring.tensor)]
        initialised: list[Stmt] = [InitBarrier(self.full_barrier, count)]
        if releasing_threads:
            declared.append(AllocBarrier(self.empty_barrier, slots, self.ring.tensor))
            initialised.append(InitBarrier(self.empty_barrier, releasing_threads // (WARP if self.is_by_tma else 1)))
        return tuple(declared), tuple(initialised)

    def close(self, *, empty: bool = False) -> tuple[Stmt, ...]:
        """Return the statements that end the barriers' lifetimes."""
        return (
            (Invalidate(self.full_barrier), Invalidate(self.empty_barrier))
            if empty
            else (Invalidate(self.full_barrier),)
        )

    def issue(self, flat: Index) -> tuple[Stmt, ...]:
        """Start the load of step ``flat`` and arrive on its full barrier."""
        slot = self.find_slot(flat)
        barrier = BarrierSlot(self.full_barrier, slot)
        # At the current step the loop variables stay as they are: more readable than recomputing them.
        by = {} if flat == self.nest.flat else self.nest.compute_variables(flat)
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
        return WaitParity(BarrierSlot(self.full_barrier, self.find_slot(flat)), self.find_parity(flat))

    def wait_empty(self, flat: Index) -> Stmt:
        """Wait until the slot of step ``flat`` may be overwritten."""
        return WaitParity(
            BarrierSlot(self.empty_barrier, self.find_slot(flat)), (flat // self.ring.stages + Const(1)) % 2
        )

    def release(self, flat: Index) -> Stmt:
        """Return the arrivals that signal that the consumers are done with step ``flat``."""
        return Arrive(BarrierSlot(self.empty_barrier, self.find_slot(flat)))
