"""A rewritten kernel as what its agents do: for one block and small extents, a straight list of events each.

An agent is a group of threads that may run ahead of the others: the warp of the elected thread and the other warps,
and in a warp-specialised block both of these for loader and consumers. Control flow does not depend on data, so each
agent's events follow from extents and block number alone. A *part* is what one agent copies into one slot: the whole
slot by TMA, a share for each agent by cp.async and plain loads. Its contents are numbered 1, 2, ... as they come.

Worked example, ``copy_1d`` with 2 stages, prefetch 1, two steps, 128 threads:

    elected warp  init; sync; expect 0; copy 0 -> slot 0; expect 1; copy 1 -> slot 1; wait 0 [reads 0]; sync; wait 1 ...
    other warps         sync;                                                         wait 0 [reads 0]; sync; wait 1 ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from interlace.pipeline.index import evaluate, holds
from interlace.pipeline.ir import (
    WARP,
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Copy,
    ElectOne,
    For,
    If,
    InitBarrier,
    Invalidate,
    Kernel,
    Let,
    Load,
    LoopKind,
    Memory,
    Per,
    Role,
    RoleKind,
    Section,
    Stmt,
    Sync,
    WaitParity,
)
from interlace.pipeline.nest import block_loops
from interlace.pipeline.traverse import read, walk

Env = dict[str, int]
#: One mbarrier: name of the array and slot. One part: tensor, slot, agent (-1: all by TMA).
Barrier = tuple[str, int]
Part = tuple[str, int, int]
#: What a part holds: where in global memory it came from.
Origin = tuple[int, ...]


class Meet(NamedTuple):
    """All agents of a scope meet."""

    scope: tuple[int, ...]


class Init(NamedTuple):
    """A barrier begins to live."""

    barrier: Barrier
    arrivals: int


class End(NamedTuple):
    """A barrier ends."""

    barrier: Barrier


class Arrival(NamedTuple):
    """Arrivals on a barrier, and bytes that it shall expect."""

    barrier: Barrier
    arrivals: int
    bytes: int


class Wait(NamedTuple):
    """The phase of a parity must be complete."""

    barrier: Barrier
    parity: int


class Begin(NamedTuple):
    """A copy of content ``number`` into a part begins, by TMA (with barrier and bytes) or cp.async (without)."""

    part: Part
    number: int
    barrier: Barrier | None
    bytes: int


class Commit(NamedTuple):
    """``arrivals`` arrive when the agent's cp.async copies so far have landed."""

    copies: tuple[tuple[Part, int], ...]
    barrier: Barrier
    arrivals: int


class Write(NamedTuple):
    """A plain copy of content ``number`` into a part."""

    part: Part
    number: int


Event = Meet | Init | End | Arrival | Wait | Begin | Commit | Write


class Reading(NamedTuple):
    """Parts that are read between two events, and the origin that they must hold (None: any)."""

    tensor: str
    slot: int
    origin: Origin | None


@dataclass
class Agent:
    """One agent: its threads and, in order, its events; ``readings[p]`` are done just before event ``p``."""

    name: str
    threads: int
    events: list[Event] = field(default_factory=list)
    readings: dict[int, list[Reading]] = field(default_factory=dict)


@dataclass
class Traces:
    """All agents of one block, and where each part's contents come from: ``origins[part][number - 1]``."""

    agents: list[Agent]
    origins: dict[Part, list[Origin]]
    owners: dict[str, str]


def trace(source: Kernel, kernel: Kernel, env: Env) -> Traces:
    """What the agents of one block do; ``source`` says what its tiles should hold where they are read."""
    return _Tracer(source, kernel).trace(block_loops(kernel)[1], dict(env))


class _Tracer:
    def __init__(self, source: Kernel, kernel: Kernel) -> None:
        self.kernel = kernel
        self.shared = {t.name for t in kernel.tensors if t.memory is Memory.SHARED}
        self.loads: dict[str, list[Load]] = {}
        for stmt in walk(source.body):
            if isinstance(stmt, Load):
                self.loads.setdefault(stmt.dst.tensor, []).append(stmt)
        self.slots = {s.name: s.slots for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        owners = {s.name: s.tensor for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        consumers = _pair("consumer" if kernel.loader_threads else "block", kernel.threads)
        loaders = _pair("loader", kernel.loader_threads)
        self.out = Traces([*consumers, *loaders], {}, owners)
        self.consumers = tuple(range(len(consumers)))
        self.loaders = tuple(range(len(consumers), len(consumers) + len(loaders)))
        self.begun: dict[int, list[tuple[Part, int]]] = {}

    def trace(self, body: tuple[Stmt, ...], env: Env) -> Traces:
        self._run(body, env, (*self.consumers, *self.loaders), None)
        return self.out

    def _run(self, body: tuple[Stmt, ...], env: Env, scope: tuple[int, ...], per: Per | None) -> None:
        """``scope`` executes ``body``; ``per``: by all of its threads, or one of each warp, or one alone."""
        for stmt in body:
            match stmt:
                case For() if stmt.kind is LoopKind.THREAD:
                    # No events, and slots are the same in all iterations; conditions are not, so all of it is read.
                    if evaluate(stmt.start, env) < evaluate(stmt.stop, env):
                        for i, inner in product(scope, walk(stmt.body)):
                            self._events(inner, env, i, per)
                case For():
                    for value in range(evaluate(stmt.start, env), evaluate(stmt.stop, env)):
                        env[stmt.var] = value
                        self._run(stmt.body, env, scope, per)
                case If():
                    if holds(stmt.condition, env):
                        self._run(stmt.body, env, scope, per)
                case Let():
                    env[stmt.var] = evaluate(stmt.value, env)
                case Section():
                    self._run(stmt.body, env, scope, per)
                case ElectOne():
                    self._run(stmt.body, env, scope[:1] if stmt.per is Per.SCOPE else scope, stmt.per)
                case Role():
                    role = self.loaders if stmt.kind is RoleKind.LOADER else self.consumers
                    self._run(stmt.body, dict(env), role, None)
                case Sync():
                    for i in scope:
                        self.out.agents[i].events.append(Meet(scope))
                case _:
                    for i in scope:
                        self._events(stmt, env, i, per)

    def _events(self, stmt: Stmt, env: Env, i: int, per: Per | None) -> None:
        """What agent ``i`` does for a statement without inner ones."""
        agent = self.out.agents[i]
        arrivals = agent.threads if per is None else 1 if per is Per.SCOPE else agent.threads // WARP
        match stmt:
            case InitBarrier():
                agent.events += [Init((stmt.name, slot), stmt.count) for slot in range(self.slots[stmt.name])]
            case Invalidate():
                agent.events += [End((stmt.name, slot)) for slot in range(self.slots[stmt.name])]
            case ArriveExpect():
                agent.events.append(Arrival(_barrier(stmt.barrier, env), arrivals, stmt.bytes * arrivals))
            case Arrive():
                agent.events.append(Arrival(_barrier(stmt.barrier, env), arrivals, 0))
            case ArriveCopies():
                copies = tuple(self.begun.pop(i, []))
                agent.events.append(Commit(copies, _barrier(stmt.barrier, env), arrivals))
            case WaitParity():
                agent.events.append(Wait(_barrier(stmt.barrier, env), evaluate(stmt.parity, env)))
            case Load() if stmt.dst.tensor in self.shared:
                self._load(stmt, env, i)
            case _:
                for box in read(stmt):
                    if box.tensor in self.loads and box.tensor in self.shared:
                        slot = 0 if box.slot is None else evaluate(box.slot, env)
                        loads = self.loads[box.tensor]
                        origin = tuple(evaluate(o, env) for o in loads[0].src.origin) if len(loads) == 1 else None
                        reading = Reading(box.tensor, slot, origin)
                        agent.readings.setdefault(len(agent.events), []).append(reading)

    def _load(self, stmt: Load, env: Env, i: int) -> None:
        agent = self.out.agents[i]
        slot = 0 if stmt.dst.slot is None else evaluate(stmt.dst.slot, env)
        part = (stmt.dst.tensor, slot, -1 if stmt.by is Copy.TMA else i)
        contents = self.out.origins.setdefault(part, [])
        contents.append(tuple(evaluate(o, env) for o in stmt.src.origin))
        number = len(contents)
        if stmt.by is Copy.PLAIN:
            agent.events.append(Write(part, number))
            return
        barrier = None if stmt.barrier is None else _barrier(stmt.barrier, env)
        nbytes = self.kernel.tensor(stmt.dst.tensor).tile_bytes if barrier else 0
        agent.events.append(Begin(part, number, barrier, nbytes))
        if stmt.by is Copy.CP_ASYNC:
            self.begun.setdefault(i, []).append((part, number))


def _pair(name: str, threads: int) -> list[Agent]:
    """The warp of the elected thread, and the others if there are any."""
    if not threads:
        return []
    first = Agent(f"{name}, first warp", WARP)
    return [first, Agent(f"{name}, other warps", threads - WARP)] if threads > WARP else [first]


def _barrier(barrier: BarrierSlot, env: Env) -> Barrier:
    return barrier.name, evaluate(barrier.slot, env)
