"""Tiny lists of events whose fate follows from the memory model by hand: what races, what blocks, what is accepted.

Two agents share a tile ``s`` of two slots, a tile ``u`` on the bytes of the first of them, and two barriers. The agents
come in either order, as nothing may depend on whom the proof follows first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from interlace.core.dtypes import fp32
from interlace.core.errors import (
    CountHazard,
    EarlyReadHazard,
    HazardError,
    LifetimeHazard,
    OverwriteHazard,
    ProxyHazard,
    StepHazard,
    StuckHazard,
    UnknownHazard,
)
from interlace.loops.ir.index import Const
from interlace.loops.ir.smem import Placement, SharedLayout
from interlace.loops.ir.statements import AllocBarrier, InitBarrier, Invalidate, LoopKernel, LoopTensor, MemorySpace
from interlace.loops.meaning.steps import SourceSteps, ValueNumbering
from interlace.loops.proof import hazards
from interlace.loops.proof.agents import Traces
from interlace.loops.proof.cells import Cells
from interlace.loops.proof.events import (
    BULK,
    PRODUCTS,
    Agent,
    Arrival,
    Await,
    Begin,
    Commit,
    End,
    Event,
    Fence,
    Init,
    Read,
    SyncThreads,
    Wait,
    Write,
)
from interlace.loops.proof.hazards import HazardChecker
from interlace.loops.proof.order import follow_all

#: Cells, and the agents P and Q.
S0, S1, U, FULL, EMPTY = range(5)
P, Q = 0, 1
NUMBERS = ValueNumbering()
A, B, C = (NUMBERS.number_loaded("x", (n,)) for n in range(3))
#: A tile of which a part is A, then one B.
PARTS = NUMBERS.number_update(NUMBERS.number_update(0, A, whole=False), B, whole=False)
SYNC = SyncThreads((P, Q))
ALL, BARRIERS = Fence(everything=True), Fence(everything=False)
BYTES = 64


PLACED = ("s", 0, 2, BYTES), ("u", 0, 1, BYTES), ("full", 128, 1, 8), ("empty", 136, 1, 8)
LAYOUT = SharedLayout(tuple(Placement(*where, 0, 9) for where in PLACED), 144, 128)


KERNEL = LoopKernel(
    "events",
    (),
    tuple(LoopTensor(name, (Const(16),), fp32, MemorySpace.SHARED) for name in "su"),
    tuple(AllocBarrier(name, 1, "s") for name in ("full", "empty")),
    32,
)


def cells() -> Cells:
    return Cells(KERNEL, LAYOUT)


def write(cell: int, content: int, instance: int, whole: bool = True) -> Write:
    return Write(cell, instance, content, whole)


def read(cell: int, content: int | None, instance: int, queue: str | None = None) -> Read:
    return Read(cell, instance, content, queue)


def copy(cell: int, content: int, instance: int, barrier: int | None = FULL) -> Begin:
    """Return a copy: by TMA to a barrier, or without a barrier by cp.async."""
    return Begin(cell, instance, content, barrier, BYTES if barrier is not None else 0)


def expect(cell: int = FULL) -> Arrival:
    return Arrival(cell, 1, BYTES)


def arrive(cell: int = FULL) -> Arrival:
    return Arrival(cell, 1, 0)


Body = Sequence[Event]


def frame(p: Body, q: Body, arrivals: int = 1) -> tuple[Body, Body]:
    """Barriers begin before and end after what the agents do."""
    begin = [Init(FULL, arrivals), Init(EMPTY, arrivals), BARRIERS, SYNC]
    return [*begin, *p, SYNC, End(FULL), End(EMPTY)], [SYNC, *q, SYNC]


def follow(p: Body, q: Body = (), *, turned: bool = False) -> int:
    """Follow the two agents; ``turned``, Q is the first to be followed."""
    bodies = [q, p] if turned else [p, q]
    names = ["Q", "P"] if turned else ["P", "Q"]

    agents = [Agent(name, 1, 1, list(body)) for name, body in zip(names, bodies, strict=True)]
    return follow_all(Traces(agents, (0, 1), ()), cells(), NUMBERS)


ACCEPTED: dict[str, tuple[Body, Body]] = {
    "read after a sync": ([write(S0, A, 1), SYNC, SYNC], [SYNC, read(S0, A, 2), SYNC]),
    "overwrite after a sync": ([write(S0, A, 1), SYNC, SYNC, write(S0, B, 3)], [SYNC, read(S0, A, 2), SYNC]),
    "two readers": ([write(S0, A, 1), SYNC, read(S0, A, 2)], [SYNC, read(S0, A, 2)]),
    "reads of what lies on the same bytes": ([read(S0, None, 1)], [read(U, None, 1)]),
    "parts of one statement": ([write(S0, A, 1), SYNC, read(S0, A, 2)], [write(S0, A, 1), SYNC, read(S0, A, 2)]),
    "other slots": ([write(S0, A, 1), read(S0, A, 3)], [write(S1, B, 2), read(S1, B, 4)]),
    "a statement in place": (
        [write(S0, A, 1), SYNC, read(S0, A, 2), write(S0, B, 2)],
        [SYNC, read(S0, A, 2), write(S0, B, 2)],
    ),
    "two parts of a tile": (
        [write(S0, A, 1, False), write(S0, B, 2, False), read(S0, PARTS, 3)],
        [],
    ),
    "a bulk copy after a read": frame(
        [expect(), copy(S0, A, 1), SYNC, SYNC, expect(), copy(S0, B, 3), Wait(FULL, 1)],
        [SYNC, Wait(FULL, 0), read(S0, A, 2), SYNC, Wait(FULL, 1), read(S0, B, 4)],
    ),
    "a bulk copy of what was written and fenced": frame(
        [write(S0, C, 1), ALL, SYNC, expect(), copy(S0, A, 2), Wait(FULL, 0), read(S0, A, 3)], [SYNC]
    ),
    "a fence by who knows of the write": frame(
        [write(S0, C, 1), SYNC, SYNC], [SYNC, ALL, expect(), copy(S0, A, 2), Wait(FULL, 0), SYNC]
    ),
    "an arrival that releases what was written": frame([write(S0, A, 1), arrive()], [Wait(FULL, 0), read(S0, A, 2)]),
    "copies of threads": frame([copy(S0, A, 1, None), Commit(FULL, 1)], [Wait(FULL, 0), read(S0, A, 2)]),
    "a ring of one slot": frame(
        [expect(), copy(S0, A, 1), Wait(EMPTY, 0), expect(), copy(S0, B, 3), Wait(EMPTY, 1)],
        [Wait(FULL, 0), read(S0, A, 2), arrive(EMPTY), Wait(FULL, 1), read(S0, B, 4), arrive(EMPTY)],
    ),
    "three phases": frame([arrive(), Wait(FULL, 0), arrive(), Wait(FULL, 1), arrive(), Wait(FULL, 0)], []),
    "phases that one agent fills and knows": frame([arrive(), arrive(), arrive()], []),
    "a wait for a phase that is known": frame([arrive(), Wait(FULL, 0), Wait(FULL, 0), write(S0, A, 1)], []),
    "two arrivals": frame([write(S0, A, 1), arrive()], [write(S1, B, 2), arrive(), Wait(FULL, 0), read(S0, A, 3)], 2),
    "a barrier of two lives": (
        [Init(FULL, 1), arrive(), Wait(FULL, 0), End(FULL), Init(FULL, 1), arrive(), Wait(FULL, 0), End(FULL)],
        [],
    ),
    "an older group is complete": (
        [
            *(write(S0, A, 1), write(S1, B, 2), ALL, read(S0, A, 3, BULK), read(S1, B, 4, BULK)),
            *(Await(BULK, 1), write(S0, C, 5), Await(BULK, 0), write(S1, C, 6)),
        ],
        [],
    ),
}


@pytest.mark.parametrize("turned", [False, True], ids=["P first", "Q first"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_events_in_order_are_accepted(name: str, turned: bool) -> None:
    p, q = ACCEPTED[name]
    assert follow(p, q, turned=turned) == len(p) + len(q)


@dataclass(frozen=True)
class Refused:
    """Events that go wrong, the errors by who is followed first, and a part of the message."""

    error: type[HazardError]
    p: Body
    q: Body = ()
    text: str = ""
    other: type[HazardError] | None = None


REFUSED: dict[str, Refused] = {
    # ------------------------------------------------ order of accesses
    "read of what is being written": Refused(EarlyReadHazard, [write(S0, A, 1)], [read(S0, A, 2)]),
    "read of nothing": Refused(EarlyReadHazard, [read(S0, A, 1)], text="is never written"),
    "read of what never comes": Refused(StepHazard, [write(S0, A, 1), read(S0, B, 2)], text="never 'x' at (1,)"),
    "overwritten while read": Refused(
        OverwriteHazard, [write(S0, A, 1), SYNC, write(S0, B, 3)], [SYNC, read(S0, A, 2)], "slot 0 is overwritten"
    ),
    "read of what is gone": Refused(OverwriteHazard, [write(S0, A, 1), write(S0, B, 2), read(S0, A, 3)]),
    "two writers": Refused(OverwriteHazard, [write(S0, A, 1)], [write(S0, B, 2)], "are under way"),
    "two copies": Refused(
        OverwriteHazard,
        *frame([expect(), copy(S0, A, 1)], [copy(S0, B, 2, None), Commit(EMPTY, 1)]),
        "a copy into it is",
    ),
    "a part overwrites what others still read": Refused(
        OverwriteHazard,
        [write(S0, A, 1), SYNC, read(S0, A, 2), write(S0, B, 3)],
        [SYNC, write(S0, B, 3)],
    ),
    "the read before the last of the writer's own": Refused(
        OverwriteHazard,
        [write(S0, A, 1), SYNC, read(S0, A, 2), read(S0, A, 3), write(S0, B, 3)],
        [SYNC, write(S0, B, 3)],
    ),
    "the read before the last two of the writer's own": Refused(
        OverwriteHazard,
        [write(S0, A, 1), SYNC, read(S0, A, 2), read(S0, A, 3), read(S0, A, 3), write(S0, B, 3)],
        [SYNC, write(S0, B, 3)],
    ),
    # ------------------------------------------------ tiles on the same bytes
    "another tile's bytes": Refused(OverwriteHazard, [write(S0, A, 1), write(U, B, 2), read(S0, A, 3)]),
    "bytes of the tile before the statement": Refused(
        OverwriteHazard, [write(S0, A, 1), write(S0, B, 2), write(U, C, 3), SYNC], [SYNC, read(S0, A, 2)]
    ),
    "a tile written while the other is read": Refused(
        OverwriteHazard,
        [write(S0, A, 1), SYNC, write(U, B, 3)],
        [SYNC, read(S0, A, 2)],
        "while Q may still read the other",
    ),
    "a tile written while the other is": Refused(
        OverwriteHazard, [write(S0, A, 1)], [write(U, B, 2)], "may still write"
    ),
    # ------------------------------------------------ proxies
    "a copy over what was not fenced": Refused(
        ProxyHazard, *frame([write(S0, C, 1), SYNC, expect(), copy(S0, A, 2)], [SYNC]), "takes slot 0, which P wrote,"
    ),
    "a copy over another tile that was not fenced": Refused(
        ProxyHazard, *frame([write(U, C, 1), SYNC, expect(), copy(S0, A, 2)], [SYNC]), "wrote as u{0}"
    ),
    "a fence before the write": Refused(ProxyHazard, *frame([ALL, write(S0, C, 1), expect(), copy(S0, A, 2)], [])),
    "a fence of barriers alone": Refused(
        ProxyHazard, *frame([write(S0, C, 1), BARRIERS, expect(), copy(S0, A, 2)], [])
    ),
    "a fence by who does not know": Refused(
        ProxyHazard, *frame([write(S0, C, 1), SYNC, expect(), copy(S0, A, 2)], [ALL, SYNC])
    ),
    "a store of what was not fenced": Refused(ProxyHazard, [write(S0, A, 1), read(S0, A, 2, BULK), Await(BULK, 0)]),
    "a copy of threads that was not fenced": Refused(
        ProxyHazard,
        *frame([copy(S0, C, 1, None), Commit(EMPTY, 1), Wait(EMPTY, 0), expect(), copy(S0, A, 2)], []),
    ),
    "a barrier that was not shown to copies": Refused(
        ProxyHazard, [Init(FULL, 1), expect(), copy(S0, A, 1)], text="whose initialisation is not shown"
    ),
    "a barrier that another agent shows": Refused(
        ProxyHazard,
        [Init(FULL, 1), SYNC, SYNC, expect(), copy(S0, A, 1)],
        [SYNC, BARRIERS, SYNC],
        "whose initialisation is not shown",
    ),
    # ------------------------------------------------ groups of asynchronous reads
    "the newest group": Refused(
        OverwriteHazard,
        [write(S0, A, 1), ALL, read(S1, None, 2, BULK), read(S0, A, 3, BULK), Await(BULK, 1), write(S0, B, 4)],
    ),
    "another queue": Refused(
        OverwriteHazard, [write(S0, A, 1), ALL, read(S0, A, 2, PRODUCTS), Await(BULK, 0), write(S0, B, 3)]
    ),
    "a group that nobody awaits": Refused(CountHazard, [read(S0, None, 1, BULK)], text="never waited for"),
    # ------------------------------------------------ barriers
    "copies that nobody commits": Refused(CountHazard, [copy(S0, A, 1, None)], text="never waited for"),
    "copies whose arrival tells nothing else": Refused(
        EarlyReadHazard,
        *frame([write(S1, B, 1), copy(S0, A, 2, None), Commit(FULL, 1)], [Wait(FULL, 0), read(S1, B, 3)]),
    ),
    "own copies before they land": Refused(
        EarlyReadHazard, *frame([copy(S0, A, 1, None), Commit(FULL, 1), read(S0, A, 2)], [])
    ),
    "a barrier that is used before": Refused(
        LifetimeHazard, [Init(FULL, 1), Wait(FULL, 0), End(FULL)], [arrive()], other=LifetimeHazard
    ),
    "a barrier that lives": Refused(LifetimeHazard, [Init(FULL, 1), Init(FULL, 1)], text="initialised while it lives"),
    "a barrier that does not live": Refused(LifetimeHazard, [End(FULL)], text="ends, which is not initialised"),
    "a barrier that stays": Refused(LifetimeHazard, [Init(FULL, 1)], text="full{0} is never invalidated"),
    "a barrier that ends in use": Refused(
        LifetimeHazard, [Init(FULL, 1), SYNC, Wait(FULL, 0), End(FULL)], [SYNC, arrive(), Wait(FULL, 0)]
    ),
    "a barrier that ends with arrivals to come": Refused(
        CountHazard, [Init(FULL, 2), arrive(), End(FULL)], text="pending"
    ),
    "a barrier that ends with bytes to come": Refused(
        CountHazard, [Init(FULL, 1), expect(), End(FULL)], text="pending"
    ),
    "a phase that nobody knows to be complete": Refused(
        CountHazard,
        [Init(FULL, 1), SYNC, SYNC, End(FULL)],
        [SYNC, copy(S0, A, 1, None), Commit(FULL, 1), SYNC],
        "pending",
    ),
    "two arrivals of one": Refused(CountHazard, *frame([Arrival(FULL, 2, 0)], []), "more than its 1 arrivals"),
    "an arrival in a phase that is not known": Refused(
        CountHazard, *frame([arrive()], [arrive()]), "more than its 1 arrivals"
    ),
    "bytes before they are expected": Refused(
        CountHazard, *frame([copy(S0, A, 1), expect()], []), "64 bytes before it expects them"
    ),
    "bytes of another phase": Refused(
        CountHazard,
        *frame([expect(), copy(S0, A, 1)], [expect(), copy(S1, B, 2)]),
        other=CountHazard,
    ),
    "a parity that is none": Refused(UnknownHazard, *frame([Wait(FULL, 2)], []), "parity 2 of full{0}; use 0 or 1"),
    "a negative parity": Refused(UnknownHazard, *frame([Wait(FULL, -1)], []), "parity -1"),
    "a wait for what does not come": Refused(
        StuckHazard, *frame([Wait(FULL, 0)], []), "P stays at: wait full{0}, parity 0"
    ),
    "a wait for the next phase": Refused(
        StuckHazard, *frame([arrive(), Wait(FULL, 0), Wait(FULL, 1)], []), "wait full{0}, parity 1"
    ),
    "a sync that not all come to": Refused(StuckHazard, [SYNC], [], "P stays at: sync"),
    "a wait that is overtaken": Refused(
        StuckHazard,
        *frame([arrive(), Wait(FULL, 0), arrive(), Wait(FULL, 1)], [Wait(FULL, 0)]),
        "Q misses parity 0 of full{0}",
    ),
    "a wait that may be overtaken": Refused(
        StuckHazard,
        *frame([arrive(), Wait(EMPTY, 0), arrive()], [arrive(EMPTY), Wait(FULL, 0)]),
        "Q misses parity 0 of full{0}",
    ),
}


@pytest.mark.parametrize("turned", [False, True], ids=["P first", "Q first"])
@pytest.mark.parametrize("name", REFUSED)
def test_events_that_go_wrong_are_named(name: str, turned: bool) -> None:
    case = REFUSED[name]
    with pytest.raises(HazardError) as caught:
        follow(case.p, case.q, turned=turned)
    assert type(caught.value) is case.error or (case.other is not None and isinstance(caught.value, case.other))
    assert case.text in str(caught.value)


def test_cells_share_bytes_as_in_the_worked_example_of_the_module() -> None:
    """Slots 0 and 1 of ``s`` share bytes with ``u``; what ends where another begins shares none."""
    tiles = (
        LoopTensor("s", (Const(64),), fp32, MemorySpace.SHARED),
        LoopTensor("u", (Const(75),), fp32, MemorySpace.SHARED),
    )
    kernel = LoopKernel("cells", (), tiles, (AllocBarrier("full", 2, "s"),), 32)
    places = ("s", 0, 3, 256), ("u", 0, 1, 300), ("full", 768, 2, 8)
    found = Cells(kernel, SharedLayout(tuple(Placement(*where, 0, 9) for where in places), 784, 128))
    assert found.shared == ((3,), (3,), (), (0, 1), (), ())
    assert (found.count, found.first_barrier, [found.is_barrier(cell) for cell in (3, 4)]) == (6, 4, [False, True])
    assert cells().shared == ((U,), (), (S0,), (), ())


@pytest.mark.parametrize("turned", [False, True], ids=["P first", "Q first"])
def test_a_barrier_on_the_bytes_of_a_tile_in_use_is_named(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two comes first in this run."""
    placed = [replace(p, offset_bytes=128) if p.name == "u" else p for p in LAYOUT.placements]
    shared = Cells(KERNEL, replace(LAYOUT, placements=tuple(placed)))
    assert shared.shared[U] == (FULL, EMPTY)
    monkeypatch.setattr(sys.modules[__name__], "cells", lambda: shared)
    follow([Init(FULL, 1), End(FULL), SYNC], [SYNC, write(U, A, 1)], turned=turned)
    text = r"^(full\{0\} is used where u\{0\}|u\{0\} is used where full\{0\}) may still use its bytes; let all threads"
    with pytest.raises(LifetimeHazard, match=text):
        follow([Init(FULL, 1), End(FULL)], [write(U, A, 1)], turned=turned)


def checker() -> HazardChecker:
    """A checker of a kernel of two barriers; tests say what its blocks do."""
    tiles = (
        LoopTensor("s", (Const(16),), fp32, MemorySpace.SHARED, stages=2),
        LoopTensor("u", (Const(16),), fp32, MemorySpace.SHARED),
    )
    barriers = [f(name) for name in ("full", "empty") for f in (alloc, lambda n: InitBarrier(n, 1), Invalidate)]
    kernel = LoopKernel("events", (), tiles, tuple(barriers), 32)
    return HazardChecker(kernel, kernel, LAYOUT)


def alloc(name: str) -> AllocBarrier:
    return AllocBarrier(name, 1, "s")


def check_blocks(monkeypatch: pytest.MonkeyPatch, *blocks: Traces, steps: SourceSteps | None = None) -> int:
    """Check blocks that do this one after another; returns the number of events that were followed."""
    left = list(blocks)
    monkeypatch.setattr(hazards, "follow", lambda source, env: steps or SourceSteps(NUMBERS, frozenset()))
    monkeypatch.setattr(hazards, "trace", lambda kernel, cells, steps, env: left.pop(0))
    return checker().check({}, [{}] * len(blocks)).events


def test_a_block_that_came_before_is_not_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hazards, "follow", lambda source, env: SourceSteps(NUMBERS, frozenset()))
    monkeypatch.setattr(hazards, "trace", lambda kernel, cells, steps, env: alone(Init(FULL, 1), End(FULL)))
    one = checker()
    checked = [one.check({}, [{}, {}]) for _ in range(2)]
    assert [(some.blocks, some.events) for some in checked] == [(2, 2), (2, 0)]


def alone(*events: Event, work: Sequence[int] = (), loads: dict[tuple[str, bool], list[int]] | None = None) -> Traces:
    return Traces([Agent("P", 1, 1, [*events], [*work], loads or {})], (0,), ())


def test_blocks_are_alike_only_if_their_events_are_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier that is waited for is another event than one that begins, though both have the numbers (3, 1)."""
    begun, awaited = (alone(event, End(FULL)) for event in (Init(FULL, 1), Wait(FULL, 1)))
    assert tuple(begun.agents[0].events[0]) == tuple(awaited.agents[0].events[0])
    assert check_blocks(monkeypatch, begun, begun) == 2
    with pytest.raises(LifetimeHazard, match=r"P waits for full\{0\}, which is not initialised there"):
        check_blocks(monkeypatch, begun, awaited)


def test_blocks_are_alike_only_if_all_of_their_agents_are(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = ([Init(FULL, 1), End(FULL)], [End(FULL)])
    first, second = (Traces([Agent("P", 1, 1), Agent("Q", 1, 1, events)], (0, 1), ()) for events in (good, bad))
    with pytest.raises(LifetimeHazard, match=r"full\{0\} ends, which is not initialised"):
        check_blocks(monkeypatch, first, second)


def test_blocks_are_alike_only_if_their_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = SourceSteps(NUMBERS, frozenset(), work=[A])
    with pytest.raises(StepHazard, match="P does nothing more where the loops say 'x' at"):
        check_blocks(monkeypatch, alone(work=[A]), alone(work=[]), steps=steps)


@pytest.mark.parametrize(
    ("work", "text"),
    [
        ([B, B], r"P does 'x' at \(1,\) where the loops say 'x' at \(0,\), as step 1;"),
        ([A, C], r"P does 'x' at \(2,\) where the loops say 'x' at \(1,\), as step 2;"),
        ([A], r"P does nothing more where the loops say 'x' at \(1,\), as step 2;"),
        ([A, B, C], r"P does 'x' at \(2,\) where the loops say nothing more, as step 3;"),
    ],
)
def test_the_first_step_that_differs_is_named(work: list[int], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = SourceSteps(NUMBERS, frozenset(), work=[A, B])
    check_blocks(monkeypatch, alone(work=[A, B]), steps=steps)
    with pytest.raises(StepHazard, match=text):
        check_blocks(monkeypatch, alone(work=work), steps=steps)


def test_who_loads_does_none_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = SourceSteps(NUMBERS, frozenset(), work=[A])
    agents = [Agent("P", 1, 1, work=[A]), Agent("Q", 1, 1, work=[A])]
    assert check_blocks(monkeypatch, Traces(agents, (0, 1), ()), steps=steps) == 0
    with pytest.raises(StepHazard, match=r"Q does 'x' at .* where the loops say nothing more"):
        check_blocks(monkeypatch, Traces(agents, (0,), (1,)), steps=steps)


TMA, COPIED = ("s", True), ("s", False)


@pytest.mark.parametrize(
    ("p", "q", "loads", "text"),
    [
        ({TMA: [A]}, {}, {TMA: [A]}, ""),
        ({COPIED: [A]}, {COPIED: [A]}, {COPIED: [A]}, ""),
        ({}, {}, {TMA: [A]}, "'s' is loaded by 0 agents; a bulk copy is issued by one thread"),
        ({}, {}, {COPIED: [A]}, "'s' is loaded by 0 agents"),
        ({TMA: [A]}, {TMA: [A]}, {TMA: [A]}, "'s' is loaded by 2 agents"),
        ({COPIED: [A]}, {}, {COPIED: [A]}, "Q loads 's' with nothing more where the loops say 'x' at"),
        ({TMA: [B]}, {}, {TMA: [A]}, r"P loads 's' with 'x' at \(1,\) where the loops say 'x' at \(0,\)"),
        ({TMA: [A]}, {}, {}, "P loads 's' with 'x' at .* where the loops say nothing more"),
        ({COPIED: [A]}, {COPIED: [A]}, {TMA: [A]}, "loads 's' with 'x' at .* where the loops say nothing more"),
    ],
)
def test_tiles_are_loaded_once_by_one_thread_or_by_all(
    p: dict[tuple[str, bool], list[int]],
    q: dict[tuple[str, bool], list[int]],
    loads: dict[tuple[str, bool], list[int]],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces = Traces([Agent("P", 1, 1, loads=p), Agent("Q", 1, 1, loads=q)], (0, 1), ())
    steps = SourceSteps(NUMBERS, frozenset(), loads=loads)
    if not text:
        assert check_blocks(monkeypatch, traces, steps=steps) == 0
        return
    with pytest.raises(StepHazard, match=text):
        check_blocks(monkeypatch, traces, steps=steps)


@pytest.mark.parametrize(("expected", "text"), [(1, "36 bytes less"), (128, "28 bytes more")])
def test_bytes_of_all_phases_are_balanced(expected: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each barrier is balanced for itself; bytes that another's copies lack do not make up for its excess."""
    events = [Arrival(FULL, 1, 64), copy(S0, A, 1), Arrival(FULL, 1, 64 if expected == 1 else 92)]
    events += [copy(S0, B, 2)] if expected > 1 else [Begin(S0, 2, B, FULL, 100)]
    with pytest.raises(CountHazard, match=rf"full\{{0\}} expects {text} than are copied"):
        check_blocks(monkeypatch, alone(*events))
