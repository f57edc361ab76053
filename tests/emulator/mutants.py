"""Mutants of rewritten kernels: one statement is dropped, doubled, moved or miscounted. Accepted ones must be correct.

Most mutants are wrong, and the proof rejects them. An accepted mutant runs on the emulator, which has its own model of
order: a fault or a different output there is a hole in the proof. Some rejected mutants run correctly: the dropped
statement was unnecessary, or the tried schedules did not need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from interlace.core.devices import H200
from interlace.core.errors import HazardError, PipelineError
from interlace.loops.cuda.emit import EmittedKernel, emit_kernel
from interlace.loops.cuda.indices import mangle
from interlace.loops.ir.index import Const, Index
from interlace.loops.ir.statements import (
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Block,
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
    Stmt,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.proof.hazards import check_hazards
from interlace.loops.rewrite.circular import lower

from .build import build
from .compare import Trial, troubles_of
from .search import TOGETHER, Drawn

_PROTOCOL = (
    SyncScope,
    FenceProxy,
    FenceBarrierInit,
    WaitParity,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    InitBarrier,
    Invalidate,
    ElectOne,
)


@dataclass(frozen=True)
class Mutant:
    """A rewritten kernel with one mutation.

    Attributes:
        what: description of the mutation.
        moved: a tile, and the offset in bytes to which it is moved; None for other mutations.
    """

    number: int
    what: str
    trial: Trial
    kernel: LoopKernel
    moved: tuple[str, int] | None = None

    def emit(self) -> EmittedKernel:
        """Return its CUDA source, with the layout of its tiles."""
        emitted = emit_kernel(self.kernel, H200)
        if self.moved is None:
            return emitted
        name, offset = self.moved
        line = re.compile(rf"(unsigned char\* const {mangle(name)} = shared \+) \d+;")
        text, changes = line.subn(rf"\1 {offset};", emitted.cuda_source)
        assert changes == 1
        placed = (replace(p, offset_bytes=offset) if p.name == name else p for p in emitted.layout.placements)
        return replace(emitted, cuda_source=text, layout=replace(emitted.layout, placements=tuple(placed)))

    def verdict(self) -> str:
        """Return the verdict of the proof at the extents of the trial: accepted, an error's name, or not proved."""
        try:
            check_hazards(self.trial.source, self.kernel, self.trial.sizes, layout=self.emit().layout)
        except HazardError as error:
            return type(error).__name__
        except PipelineError:
            return "not proved"
        return "accepted"


def mutants(found: Drawn, most: int) -> list[Mutant]:
    """Return at most ``most`` random mutants of a kernel that the emitter still accepts."""
    random, trial = Random(found.number), found.trial
    whole = lower(trial.source, warp_specialised=trial.warp_specialised)
    places = [n for n, stmt in enumerate(walk(whole.body)) if isinstance(stmt, (*_PROTOCOL, Load, For, If))]
    out = _move_tile(found, whole, random)
    for place in random.sample(places, min(len(places), 3 * most)):
        stmt = list(walk(whole.body))[place]
        what, change = random.choice(list(_changes(stmt, whole)) or [("nothing", lambda s: (s,))])
        kernel = replace(whole, body=_edit(whole.body, place, change))
        try:
            emit_kernel(kernel, H200)
        except PipelineError:
            continue
        if kernel != whole and len(out) < most:
            out.append(Mutant(found.number, f"{what}: {stmt}", trial, kernel))
    return out


def _move_tile(found: Drawn, whole: LoopKernel, random: Random) -> list[Mutant]:
    """Return a mutant with a tile moved onto the bytes of another one, if possible."""
    tiles = {tensor.name for tensor in whole.tensors}
    placed = [p for p in emit_kernel(whole, H200).layout.placements if p.name in tiles]
    if len(placed) < 2:
        return []
    tile, other = random.sample(placed, 2)
    if tile.offset_bytes == other.offset_bytes or tile.size_bytes > other.size_bytes:
        return []
    what = f"moved: {tile.name} to {other.name}"
    return [Mutant(found.number, what, found.trial, whole, (tile.name, other.offset_bytes))]


def find_wrong(some: Sequence[Mutant], seeds: int = 2) -> list[tuple[Mutant, list[str]]]:
    """Return the mutants that fail on the emulator, with their failures; those that the proof accepts are its holes."""
    out = []
    for first in range(0, len(some), TOGETHER):
        part = some[first : first + TOGETHER]
        library = build([mutant.emit() for mutant in part])
        for at, mutant in enumerate(part):
            troubles = list(troubles_of(library, at, mutant.trial, range(seeds)))
            if troubles:
                out.append((mutant, troubles))
    return out


Change = Callable[[Any], tuple[Stmt, ...]]


def _changes(stmt: Stmt, kernel: LoopKernel) -> Iterator[tuple[str, Change]]:
    """Yield mutations of a statement."""
    if isinstance(stmt, _PROTOCOL):
        yield "dropped", lambda s: ()
        yield "dropped", lambda s: ()
        yield "doubled", lambda s: (s, s)
    match stmt:
        case WaitParity():
            yield "other parity", lambda s: (replace(s, parity=Const(1) - s.parity),)
            yield "next slot", lambda s: (replace(s, barrier=_next(s.barrier, kernel)),)
        case InitBarrier():
            yield "one arrival more", lambda s: (replace(s, count=stmt.count + 1),)
            if stmt.count > 1:
                yield "one arrival less", lambda s: (replace(s, count=stmt.count - 1),)
        case ArriveExpect():
            yield "more bytes", lambda s: (replace(s, bytes=stmt.bytes + 16),)
            yield "fewer bytes", lambda s: (replace(s, bytes=stmt.bytes - 16),)
        case Arrive() | ArriveCopies():
            yield "next slot", lambda s: (replace(s, barrier=_next(stmt.barrier, kernel)),)
        case ElectOne():
            yield "by all", lambda s: stmt.body
        case Load() if stmt.dst.slot is not None:
            stages = kernel.find_tensor(stmt.dst.tensor).stages or 1
            slot = replace(stmt.dst, slot=(stmt.dst.slot + 1) % stages)
            yield "into the next slot", lambda s: (replace(s, dst=slot),)
        case For() if stmt.kind is LoopKind.SERIAL:
            yield "one step less", lambda s: (replace(s, stop=stmt.stop - 1),)
            yield "one step later", lambda s: (replace(s, start=stmt.start + 1),)
            if len(stmt.body) > 1 and not isinstance(stmt.body[0], Let):  # a name must precede its uses
                yield "last statement first", lambda s: (replace(s, body=(*stmt.body[-1:], *stmt.body[:-1])),)
                yield "first statement last", lambda s: (replace(s, body=(*stmt.body[1:], *stmt.body[:1])),)
        case If():
            less = replace(stmt.condition, left=stmt.condition.left + 1)
            yield "one step sooner false", lambda s: (replace(s, condition=less),)


def _next(barrier: BarrierSlot, kernel: LoopKernel) -> BarrierSlot:
    stages = next((t.stages for t in kernel.tensors if barrier.name in (f"{t.name}_full", f"{t.name}_empty")), 1) or 1
    slot: Index = (barrier.slot + 1) % stages
    return replace(barrier, slot=slot)


def _edit(body: tuple[Stmt, ...], place: int, change: Change) -> tuple[Stmt, ...]:
    """Return ``body`` with statement number ``place`` (in the order of ``walk``) changed."""
    out: list[Stmt] = []
    for stmt in body:
        size = 1 + (sum(1 for _ in walk(stmt.body)) if isinstance(stmt, Block) else 0)
        if place == 0:
            out += change(stmt)
        elif isinstance(stmt, Block) and 0 < place < size:
            out.append(replace(stmt, body=_edit(stmt.body, place - 1, change)))
        else:
            out.append(stmt)
        place -= size
    return tuple(out)
