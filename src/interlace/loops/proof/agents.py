"""Traces of a rewritten kernel: for one block and small extents, a straight-line list of events per agent.

An *agent* is a group of threads that may run ahead of the others: the elected thread, the other lanes of its warp, a
second warp, and all other warps. A warp-specialised block has these for the loader and for the consumers. Two warps
without the elected thread represent any two, which may also race with each other. Control flow does not depend on
data, so each agent's events follow from extents and block number alone. They are the events of the emitted CUDA source:
a matrix product whose stage is released late, or a TMA store that is awaited late, is late in the trace too
(``rewrite/peepholes`` finds both).

Worked example, ``copy_1d`` with 2 stages, prefetch 1, two steps, 128 threads; ``[0]`` is slot 0:

    first thread  init; fence; sync; expect [0]; copy to [0]; expect [1]; copy to [1]; wait [0]; read [0]; sync; ...
    other agents               sync;                                                   wait [0]; read [0]; sync; ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.core.errors import PipelineError
from interlace.loops.ir.nest import block_loops
from interlace.loops.ir.statements import (
    WARP,
    AllocBarrier,
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    Copy,
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
    Memory,
    Per,
    Role,
    RoleKind,
    Section,
    Stmt,
    Store,
    Sync,
    WaitParity,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.ir.values import Box
from interlace.loops.meaning.steps import (
    At,
    Env,
    Steps,
    is_done,
    is_met,
    origin_of,
    shared_reads,
    shared_writes,
    value_of,
)
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
from interlace.loops.rewrite.peepholes import deferred_stores, filled_by_tma, lagging_releases, pending_stores

#: Maximum number of events in a block that can be followed.
MOST_EVENTS = 1_000_000


@dataclass(frozen=True)
class Scope:
    """Executors of statements: the agents ``here`` of a role, with all of their threads or as ``per`` specifies."""

    role: tuple[int, ...]
    here: tuple[int, ...]
    per: Per | None = None


@dataclass
class Traces:
    """All agents of one block: those that compute, then those that load."""

    agents: list[Agent]
    consumers: tuple[int, ...]
    loaders: tuple[int, ...]


def trace(kernel: LoopKernel, cells: Cells, steps: Steps, env: Env) -> Traces:
    """Return the events of the agents of one block; ``steps`` has the expected contents of tiles at each read.

    Raises:
        UnknownHazard: a slot, barrier, tile or variable does not exist.
        PipelineError: too many events.
    """
    tracer = _Tracer(kernel, cells, steps)
    everyone = (*tracer.out.consumers, *tracer.out.loaders)
    tracer.run(block_loops(kernel)[1], dict(env), Scope(everyone, everyone), ())
    return tracer.out


class _Tracer:
    def __init__(self, kernel: LoopKernel, cells: Cells, steps: Steps) -> None:
        self.kernel = kernel
        self.cells = cells
        self.steps = steps
        self.tiles = {t.name: t for t in kernel.tensors if t.memory is Memory.SHARED}
        consumers = _agents("consumer" if kernel.loader_threads else "block", kernel.threads)
        loaders = _agents("loader", kernel.loader_threads)
        here = tuple(range(len(consumers) + len(loaders)))
        self.out = Traces([*consumers, *loaders], here[: len(consumers)], here[len(consumers) :])
        self.deferred = deferred_stores(kernel)
        self.lagging: tuple[str, ...] = ()
        self.executed = 0  # statements so far: what agents do for one of them belongs together

    def run(self, body: tuple[Stmt, ...], env: Env, scope: Scope, at: At) -> None:
        for stmt in body:
            match stmt:
                case For() if stmt.kind is not LoopKind.THREAD:
                    self._for(stmt, env, scope, at)
                case If():
                    if is_met(stmt.condition, env):
                        self.run(stmt.body, env, scope, at)
                case Let():
                    env[stmt.var] = value_of(stmt.value, env)
                case Section():
                    self.run(stmt.body, env, scope, at)
                    if any(s in self.deferred for s in walk(stmt.body)):
                        self._events(scope.role[:1], Await(BULK, 0))
                case ElectOne():
                    self._elect(stmt, env, scope, at)
                case Role():
                    role = self.out.loaders if stmt.kind is RoleKind.LOADER else self.out.consumers
                    self.run(stmt.body, dict(env), Scope(role, role), at)
                case Sync():
                    self._events(scope.here, SyncThreads(scope.role))
                case _:
                    if is_done(stmt, env):
                        self._statement(stmt, env, scope, at)

    def _for(self, loop: For, env: Env, scope: Scope, at: At) -> None:
        self.lagging = lagging_releases(self.kernel, loop)
        for value in range(value_of(loop.start, env), value_of(loop.stop, env)):
            env[loop.var] = value
            self.run(loop.body, env, scope, (*at, (loop.var, value)) if loop.var in self.steps.loops else at)
            if sum(len(agent.events) for agent in self.out.agents) > MOST_EVENTS:
                raise PipelineError(f"over {MOST_EVENTS} events in a block; use smaller extents, or fewer stages")
        if self.lagging:
            self._events(scope.here, Await(PRODUCTS, 0))
            self._sync_warp(scope)
            self._late(scope)
            self.lagging = ()

    def _elect(self, stmt: ElectOne, env: Env, scope: Scope, at: At) -> None:
        if stmt.per is Per.SCOPE:
            self.run(stmt.body, env, replace(scope, here=scope.here[:1], per=Per.SCOPE), at)
            return
        late = [s for s in stmt.body if isinstance(s, Arrive) and s.barrier.name in self.lagging]
        for arrive in late:
            self._late(scope, arrive.barrier.name)
            for i in self._firsts(scope):
                self.out.agents[i].late[arrive.barrier.name] = self._barrier(arrive.barrier, env)
        now = tuple(s for s in stmt.body if s not in late)
        if now:
            self._sync_warp(scope)
            self.run(now, env, replace(scope, here=self._firsts(scope), per=Per.WARP), at)

    def _firsts(self, scope: Scope) -> tuple[int, ...]:
        return tuple(i for i in scope.here if self.out.agents[i].warps)

    def _sync_warp(self, scope: Scope) -> None:
        """Synchronise the lanes of each warp; only the first warp has more than one agent."""
        self._events(scope.here[:2], SyncThreads(scope.role[:2]))

    def _late(self, scope: Scope, name: str | None = None) -> None:
        """Emit deferred releases, of one array of barriers or of all."""
        for i in self._firsts(scope):
            late = self.out.agents[i].late
            for released in [name] if name is not None else list(late):
                if released in late:
                    self._events((i,), Arrival(late.pop(released), self.out.agents[i].warps, 0))

    def _statement(self, stmt: Stmt, env: Env, scope: Scope, at: At) -> None:
        """Emit the events of the agents of ``scope`` for a statement without nested ones, or for a thread loop."""
        self.executed += 1
        match stmt:
            case AllocBarrier():
                pass
            case InitBarrier():
                for cell in self.cells.array(stmt.name):
                    self._events(scope.here, Init(cell, stmt.count))
            case Invalidate():
                for cell in self.cells.array(stmt.name):
                    self._events(scope.here, End(cell))
            case FenceBarrierInit() | FenceProxy():
                self._events(scope.here, Fence(isinstance(stmt, FenceProxy)))
            case ArriveExpect():
                self._arrive(stmt.barrier, stmt.bytes, env, scope)
            case Arrive():
                self._arrive(stmt.barrier, 0, env, scope)
            case ArriveCopies():
                barrier = self._barrier(stmt.barrier, env)
                for i in scope.here:
                    self._events((i,), Commit(barrier, self.out.agents[i].arrivals(scope.per)))
            case WaitParity():
                self._events(scope.here, Wait(self._barrier(stmt.barrier, env), value_of(stmt.parity, env)))
            case Load() if stmt.dst.tensor in self.tiles:
                self._load(stmt, env, scope)
            case Store() if stmt.by is Copy.TMA:
                self._store(stmt, env, scope, at)
            case _:
                self._work(stmt, env, scope, at)
        if isinstance(stmt, Matmul):
            self._events(scope.here, Await(PRODUCTS, 1 if self.lagging else 0))
            self._sync_warp(scope)  # the instructions take whole warps

    def _arrive(self, barrier: BarrierSlot, nbytes: int, env: Env, scope: Scope) -> None:
        cell = self._barrier(barrier, env)
        for i in scope.here:
            arrivals = self.out.agents[i].arrivals(scope.per)
            self._events((i,), Arrival(cell, arrivals, nbytes * arrivals))

    def _load(self, stmt: Load, env: Env, scope: Scope) -> None:
        tile, cell = self.tiles[stmt.dst.tensor], self._cell(stmt.dst, env)
        content = self.steps.numbers.loaded(stmt.src.tensor, origin_of(stmt.src, env))
        for i in scope.here:
            self.out.agents[i].loads.setdefault((tile.name, stmt.by is Copy.TMA), []).append(content)
        if stmt.by is Copy.PLAIN:
            self._events(scope.here, Write(cell, self.executed, content, stmt.dst.shape == tile.tile))
            return
        barrier, nbytes = None, 0
        if stmt.by is Copy.TMA:
            pending = next((p for s in self.deferred if (p := pending_stores(self.kernel, stmt, s)) is not None), None)
            if pending is not None:
                self._events(scope.here, Await(BULK, pending))
            if stmt.barrier is not None:
                barrier, nbytes = self._barrier(stmt.barrier, env), tile.tile_bytes
        self._events(scope.here, Begin(cell, self.executed, content, barrier, nbytes))

    def _work(self, stmt: Stmt, env: Env, scope: Scope, at: At) -> None:
        queue = PRODUCTS if isinstance(stmt, Matmul) else None
        reads = [self._cell(box, env) for box in shared_reads(stmt, self.tiles)]
        writes = [
            (self._cell(box, env), box.shape == self.tiles[box.tensor].tile) for box in shared_writes(stmt, self.tiles)
        ]
        for i in scope.here:
            agent = self.out.agents[i]
            instance, contents = self._instance(agent, stmt, at)
            for n, cell in enumerate(reads):
                content = contents[n] if contents is not None else None
                agent.events.append(Read(cell, self.executed, content, queue))
            if writes:
                written = self.steps.numbers.written(instance, agent.times[instance] - 1)
                agent.events += [Write(cell, self.executed, written, whole) for cell, whole in writes]

    def _store(self, stmt: Store, env: Env, scope: Scope, at: At) -> None:
        """Emit a store; by TMA: fence, sync, then one thread issues the copy and, unless deferred, waits for it."""
        if not filled_by_tma(self.kernel, stmt.src.tensor):
            self._events(scope.here, Fence(everything=True))
            self._events(scope.here, SyncThreads(scope.role))
        for i in scope.here:
            _, contents = self._instance(self.out.agents[i], stmt, at)
            if i == scope.role[0]:
                content = contents[0] if contents is not None else None
                self._events((i,), Read(self._cell(stmt.src, env), self.executed, content, BULK))
                if stmt not in self.deferred:
                    self._events((i,), Await(BULK, 0))

    def _instance(self, agent: Agent, stmt: Stmt, at: At) -> tuple[int, tuple[int, ...] | None]:
        """Count one more execution; return the instance and what it reads (None if the source has fewer)."""
        instance = self.steps.numbers.instance(stmt, at)
        times = self.steps.reads.get(instance, [])
        done = agent.times[instance] = agent.times.get(instance, 0) + 1
        agent.work.append(instance)
        return instance, times[done - 1] if done <= len(times) else None

    def _events(self, agents: tuple[int, ...], event: Event) -> None:
        for i in agents:
            self.out.agents[i].events.append(event)

    def _barrier(self, barrier: BarrierSlot, env: Env) -> int:
        return self.cells.at(barrier.name, value_of(barrier.slot, env))

    def _cell(self, box: Box, env: Env) -> int:
        return self.cells.at(box.tensor, 0 if box.slot is None else value_of(box.slot, env))


def _agents(role: str, threads: int) -> list[Agent]:
    if not threads:
        return []
    more = threads // WARP - 1
    agents = [Agent(f"{role}, first thread", 1, 1), Agent(f"{role}, first warp", WARP - 1, 0)]
    if more:
        agents.append(Agent(f"{role}, second warp", WARP, 1))
    if more > 1:
        agents.append(Agent(f"{role}, other warps", (more - 1) * WARP, more - 1))
    return agents
