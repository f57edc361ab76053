"""Proof that a rewritten kernel has no hazard and does the work of its source loops, for given extents.

Blocks are followed one by one: the work of the loops (``steps``), the events of the rewritten kernel's agents
(``agents``), the bytes of its tiles and barriers (``cells``), and happens-before (``order``). The proof checks that

- no two accesses to the same bytes race, and every read finds the contents that the loops define (``accesses``);
- every wait ends, every phase gets its arrivals and bytes, and nothing is pending at the end;
- every computing agent has done all the work of the loops, once and in order, and each tile was loaded with what the
  loops load, by all threads that copy.

The model does not cover the inside of a statement: how threads share elements, registers, shuffles, and the scratch
memory of reductions, which no tile shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from interlace.core.errors import (
    CountHazard,
    LifetimeHazard,
    PipelineError,
    SharedBarrierHazard,
    StepHazard,
    UnknownHazard,
)
from interlace.loops.ir.nest import iterate_blocks, split_block_loops
from interlace.loops.ir.smem import SharedLayout, place
from interlace.loops.ir.statements import AllocBarrier, InitBarrier, Invalidate, Load, LoopKernel, Stmt
from interlace.loops.ir.traverse import list_boxes, walk
from interlace.loops.meaning.steps import SourceSteps, follow
from interlace.loops.proof.agents import Traces, trace
from interlace.loops.proof.cells import Cells
from interlace.loops.proof.events import Agent, Arrival, Begin
from interlace.loops.proof.order import follow_all
from interlace.loops.proof.scopes import check_scopes


@dataclass(frozen=True)
class HazardReport:
    """Result of a check: blocks, events of those that differ, and the statements of the loops that they reached."""

    blocks: int
    events: int
    reached: frozenset[Stmt] = field(repr=False, compare=False)


def check_hazards(
    source: LoopKernel,
    kernel: LoopKernel,
    sizes: Mapping[str, int],
    selected_blocks: Iterable[Mapping[str, int]] | None = None,
    layout: SharedLayout | None = None,
) -> HazardReport:
    """Follow ``kernel``, the rewritten ``source``, with run-time extents ``sizes``.

    Args:
        selected_blocks: values of the block loops' variables, for each block to check; all blocks by default.
        layout: shared-memory layout of tiles and barriers; by default that of the emitted CUDA source.

    Raises:
        HazardError: the subclass names the hazard, the message the tile and the conflicting agents.
        PipelineError: the extents make a block of too many events, or a divisor below 1.
    """
    return HazardChecker(source, kernel, layout).check(sizes, selected_blocks)


class HazardChecker:
    """A rewritten kernel that is followed at one set of extents after another; equal blocks are followed once.

    Raises:
        HazardError: as ``check_hazards``, for hazards that show without extents.
    """

    def __init__(self, source: LoopKernel, kernel: LoopKernel, layout: SharedLayout | None = None) -> None:
        self.source = source
        self.kernel = kernel
        with self._label_errors():
            _check_tensors(kernel)
            _check_barriers(kernel)
            _check_grid(source, kernel)
            check_scopes(kernel)
            self.cells = Cells(kernel, place(kernel) if layout is None else layout)
        self._events: dict[object, int] = {}

    def check(
        self, sizes: Mapping[str, int], selected_blocks: Iterable[Mapping[str, int]] | None = None
    ) -> HazardReport:
        """Check as ``check_hazards`` does; the result counts events only of blocks that were not seen before."""
        reached: set[Stmt] = set()
        count, before = 0, sum(self._events.values())
        with self._label_errors():
            for values in iterate_blocks(self.kernel, sizes) if selected_blocks is None else selected_blocks:
                count += 1
                steps = follow(self.source, {**sizes, **values})
                reached |= steps.reached
                traces = trace(self.kernel, self.cells, steps, {**sizes, **values})
                does = tuple((*map(_tag_type, a.events), *a.work) for a in traces.agents), tuple(steps.work)
                if does not in self._events:
                    self._events[does] = _check_block(traces, self.cells, steps)
        return HazardReport(count, sum(self._events.values()) - before, frozenset(reached))

    @contextmanager
    def _label_errors(self) -> Iterator[None]:
        try:
            yield
        except PipelineError as error:
            raise type(error)(f"kernel {self.kernel.name!r}, {error}") from None


def _tag_type(event: tuple[object, ...]) -> tuple[object, ...]:
    return type(event), *event


def _check_tensors(kernel: LoopKernel) -> None:
    declared = {tensor.name for tensor in kernel.tensors}
    for box in (box for stmt in walk(kernel.body) for box in list_boxes(stmt)):
        if box.tensor not in declared:
            raise UnknownHazard(f"there is no tensor {box.tensor!r}; declare it, or name one that is there")


def _check_barriers(kernel: LoopKernel) -> None:
    """Check that each array of barriers is declared, begins and ends, and counts the bytes of one tile."""
    statements = tuple(walk(kernel.body))
    begun = {s.name for s in statements if isinstance(s, InitBarrier)}
    ended = {s.name for s in statements if isinstance(s, Invalidate)}
    for name in (s.name for s in statements if isinstance(s, AllocBarrier)):
        if name not in begun:
            raise LifetimeHazard(f"{name} is not initialised; initialise it before its first use")
        if name not in ended:
            raise LifetimeHazard(f"{name} is never invalidated; add it at the end")
    owners: dict[str, str] = {}
    for stmt in statements:
        if isinstance(stmt, Load) and stmt.barrier is not None:
            other = owners.setdefault(stmt.barrier.name, stmt.dst.tensor)
            if other != stmt.dst.tensor:
                raise SharedBarrierHazard(
                    f"{stmt.barrier.name} counts bytes of {other!r} and {stmt.dst.tensor!r}; give each tensor its own "
                    "barriers"
                )


def _check_grid(source: LoopKernel, kernel: LoopKernel) -> None:
    """Check that the number of blocks matches the source loops."""
    grids = [[(loop.var, loop.start, loop.stop) for loop in split_block_loops(k)[0]] for k in (source, kernel)]
    if grids[0] != grids[1]:
        raise StepHazard("its blocks are not those of the loops; keep the block loops as they are")


def _check_block(traces: Traces, cells: Cells, steps: SourceSteps) -> int:
    _check_bytes(traces, cells)
    events = follow_all(traces, cells, steps.numbers)
    _check_work(traces, steps)
    _check_loads(traces, steps)
    return events


def _check_bytes(traces: Traces, cells: Cells) -> None:
    """Check that over each barrier's life, as many bytes are expected as are copied."""
    balance: dict[int, int] = {}
    for event in (e for agent in traces.agents for e in agent.events):
        if isinstance(event, Arrival):
            balance[event.cell] = balance.get(event.cell, 0) + event.bytes
        elif isinstance(event, Begin) and event.barrier is not None:
            balance[event.barrier] = balance.get(event.barrier, 0) - event.bytes
    for cell, left in balance.items():
        if left:
            name, slot = cells.find_name(cell)
            raise CountHazard(
                f"{name}{{{slot}}} expects {abs(left)} bytes {'more' if left > 0 else 'less'} than are copied; "
                "expect each copy's bytes once"
            )


def _check_work(traces: Traces, steps: SourceSteps) -> None:
    """Check that computing agents do all of the loops' work in order, and loading agents do none."""
    for i, agent in enumerate(traces.agents):
        expected = steps.work if i in traces.consumers else []
        _check_same(f"{agent.name} does", agent.work, expected, steps)


def _check_loads(traces: Traces, steps: SourceSteps) -> None:
    """Check that one thread issues each bulk copy, and all loading threads share all other copies."""
    every = dict.fromkeys(key for agent in traces.agents for key in agent.loads) | dict.fromkeys(steps.loads)
    for tile, by_tma in every:
        parts = [[traces.agents[i] for i in part] for part in (traces.consumers, traces.loaders)]
        who: list[Agent] = [a for part in parts if any((tile, by_tma) in a.loads for a in part) for a in part]
        if by_tma:
            who = [a for a in who if (tile, by_tma) in a.loads]
        expected = steps.loads.get((tile, by_tma), [])
        if len(who) != 1 if by_tma else not who:
            raise StepHazard(f"{tile!r} is loaded by {len(who)} agents; a bulk copy is issued by one thread, once")
        for agent in who:
            _check_same(f"{agent.name} loads {tile!r} with", agent.loads.get((tile, by_tma), []), expected, steps)


def _check_same(who: str, found: list[int], expected: list[int], steps: SourceSteps) -> None:
    if found == expected:
        return
    pairs = enumerate(zip(found, expected, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(found), len(expected)))
    a, b = (steps.numbers.describe(which[at]) if at < len(which) else "nothing more" for which in (found, expected))
    raise StepHazard(f"{who} {a} where the loops say {b}, as step {at + 1}; do each step of the loops once, in order")
