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
from interlace.loops.ir.nest import split_block_loops
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
    Role,
    RoleKind,
    Section,
    Stmt,
    Store,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.ir.values import Box
from interlace.loops.meaning.steps import (
    Env,
    IterationVector,
    SourceSteps,
    evaluate_index,
    evaluate_origin,
    find_shared_reads,
    find_shared_writes,
    is_executed,
    is_met,
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
from interlace.loops.rewrite.peepholes import (
    count_pending_stores,
    find_deferred_stores,
    find_lagging_releases,
    is_filled_by_tma,
)

#: Maximum number of events in a block that can be followed.
MAX_EVENTS = 1_000_000


@dataclass(frozen=True)
class AgentScope:
    """Executors of statements: the agents ``agents`` of a role, with all of their threads or as ``per`` specifies."""

    role: tuple[int, ...]
    agents: tuple[int, ...]
    per: ElectionScope | None = None


@dataclass
class Traces:
    """All agents of one block: those that compute, then those that load."""

    agents: list[Agent]
    consumers: tuple[int, ...]
    loaders: tuple[int, ...]


def trace(kernel: LoopKernel, cells: Cells, steps: SourceSteps, env: Env) -> Traces:
    """Return the events of the agents of one block; ``steps`` has the expected contents of tiles at each read.

    Raises:
        UnknownHazard: a slot, barrier, tile or variable does not exist.
        PipelineError: too many events.
    """
    tracer = _Tracer(kernel, cells, steps)
    everyone = (*tracer.out.consumers, *tracer.out.loaders)
    tracer.run(split_block_loops(kernel)[1], dict(env), AgentScope(everyone, everyone), ())
    return tracer.out


class _Tracer:
    def __init__(self, kernel: LoopKernel, cells: Cells, steps: SourceSteps) -> None:
        self.kernel = kernel
        self.cells = cells
        self.steps = steps
        self.tiles = {t.name: t for t in kernel.tensors if t.memory is MemorySpace.SHARED}
        consumers = _make_agents("consumer" if kernel.loader_threads else "block", kernel.threads)
        loaders = _make_agents("loader", kernel.loader_threads)
        here = tuple(range(len(consumers) + len(loaders)))
        self.out = Traces([*consumers, *loaders], here[: len(consumers)], here[len(consumers) :])
        self.deferred = find_deferred_stores(kernel)
        self.lagging: tuple[str, ...] = ()
        self.executed = 0  # statements so far: what agents do for one of them belongs together

    def run(self, body: tuple[Stmt, ...], env: Env, scope: AgentScope, at: IterationVector) -> None:
        for stmt in body:
            match stmt:
                case For() if stmt.kind is not LoopKind.THREAD:
                    self._trace_for(stmt, env, scope, at)
                case If():
                    if is_met(stmt.condition, env):
                        self.run(stmt.body, env, scope, at)
                case Let():
                    env[stmt.var] = evaluate_index(stmt.value, env)
                case Section():
                    self.run(stmt.body, env, scope, at)
                    if any(s in self.deferred for s in walk(stmt.body)):
                        self._emit_events(scope.role[:1], Await(BULK, 0))
                case ElectOne():
                    self._trace_elect(stmt, env, scope, at)
                case Role():
                    role = self.out.loaders if stmt.kind is RoleKind.LOADER else self.out.consumers
                    self.run(stmt.body, dict(env), AgentScope(role, role), at)
                case SyncScope():
                    self._emit_events(scope.agents, SyncThreads(scope.role))
                case _:
                    if is_executed(stmt, env):
                        self._trace_statement(stmt, env, scope, at)

    def _trace_for(self, loop: For, env: Env, scope: AgentScope, at: IterationVector) -> None:
        self.lagging = find_lagging_releases(self.kernel, loop)
        for value in range(evaluate_index(loop.start, env), evaluate_index(loop.stop, env)):
            env[loop.var] = value
            self.run(loop.body, env, scope, (*at, (loop.var, value)) if loop.var in self.steps.loops else at)
            if sum(len(agent.events) for agent in self.out.agents) > MAX_EVENTS:
                raise PipelineError(f"over {MAX_EVENTS} events in a block; use smaller extents, or fewer stages")
        if self.lagging:
            self._emit_events(scope.agents, Await(PRODUCTS, 0))
            self._sync_warp(scope)
            self._emit_late_releases(scope)
            self.lagging = ()

    def _trace_elect(self, stmt: ElectOne, env: Env, scope: AgentScope, at: IterationVector) -> None:
        if stmt.per is ElectionScope.SCOPE:
            self.run(stmt.body, env, replace(scope, agents=scope.agents[:1], per=ElectionScope.SCOPE), at)
            return
        late = [s for s in stmt.body if isinstance(s, Arrive) and s.barrier.name in self.lagging]
        for arrive in late:
            self._emit_late_releases(scope, arrive.barrier.name)
            for i in self._find_first_lanes(scope):
                self.out.agents[i].late[arrive.barrier.name] = self._find_barrier(arrive.barrier, env)
        now = tuple(s for s in stmt.body if s not in late)
        if now:
            self._sync_warp(scope)
            self.run(now, env, replace(scope, agents=self._find_first_lanes(scope), per=ElectionScope.WARP), at)

    def _find_first_lanes(self, scope: AgentScope) -> tuple[int, ...]:
        return tuple(i for i in scope.agents if self.out.agents[i].warps)

    def _sync_warp(self, scope: AgentScope) -> None:
        """Synchronise the lanes of each warp; only the first warp has more than one agent."""
        self._emit_events(scope.agents[:2], SyncThreads(scope.role[:2]))

    def _emit_late_releases(self, scope: AgentScope, name: str | None = None) -> None:
        """Emit deferred releases, of one array of barriers or of all."""
        for i in self._find_first_lanes(scope):
            late = self.out.agents[i].late
            for released in [name] if name is not None else list(late):
                if released in late:
                    self._emit_events((i,), Arrival(late.pop(released), self.out.agents[i].warps, 0))

    def _trace_statement(self, stmt: Stmt, env: Env, scope: AgentScope, at: IterationVector) -> None:
        """Emit the events of the agents of ``scope`` for a statement without nested ones, or for a thread loop."""
        self.executed += 1
        match stmt:
            case AllocBarrier():
                pass
            case InitBarrier():
                for cell in self.cells.find_array(stmt.name):
                    self._emit_events(scope.agents, Init(cell, stmt.count))
            case Invalidate():
                for cell in self.cells.find_array(stmt.name):
                    self._emit_events(scope.agents, End(cell))
            case FenceBarrierInit() | FenceProxy():
                self._emit_events(scope.agents, Fence(isinstance(stmt, FenceProxy)))
            case ArriveExpect():
                self._arrive(stmt.barrier, stmt.bytes, env, scope)
            case Arrive():
                self._arrive(stmt.barrier, 0, env, scope)
            case ArriveCopies():
                barrier = self._find_barrier(stmt.barrier, env)
                for i in scope.agents:
                    self._emit_events((i,), Commit(barrier, self.out.agents[i].count_arrivals(scope.per)))
            case WaitParity():
                self._emit_events(
                    scope.agents, Wait(self._find_barrier(stmt.barrier, env), evaluate_index(stmt.parity, env))
                )
            case Load() if stmt.dst.tensor in self.tiles:
                self._trace_load(stmt, env, scope)
            case Store() if stmt.by is Copy.TMA:
                self._trace_store(stmt, env, scope, at)
            case _:
                self._trace_work(stmt, env, scope, at)
        if isinstance(stmt, Matmul):
            self._emit_events(scope.agents, Await(PRODUCTS, 1 if self.lagging else 0))
            self._sync_warp(scope)  # the instructions take whole warps

    def _arrive(self, barrier: BarrierSlot, nbytes: int, env: Env, scope: AgentScope) -> None:
        cell = self._find_barrier(barrier, env)
        for i in scope.agents:
            arrivals = self.out.agents[i].count_arrivals(scope.per)
            self._emit_events((i,), Arrival(cell, arrivals, nbytes * arrivals))

    def _trace_load(self, stmt: Load, env: Env, scope: AgentScope) -> None:
        tile, cell = self.tiles[stmt.dst.tensor], self._find_cell(stmt.dst, env)
        content = self.steps.numbers.number_loaded(stmt.src.tensor, evaluate_origin(stmt.src, env))
        for i in scope.agents:
            self.out.agents[i].loads.setdefault((tile.name, stmt.by is Copy.TMA), []).append(content)
        if stmt.by is Copy.PLAIN:
            self._emit_events(scope.agents, Write(cell, self.executed, content, stmt.dst.shape == tile.tile))
            return
        barrier, nbytes = None, 0
        if stmt.by is Copy.TMA:
            pending = next(
                (p for s in self.deferred if (p := count_pending_stores(self.kernel, stmt, s)) is not None), None
            )
            if pending is not None:
                self._emit_events(scope.agents, Await(BULK, pending))
            if stmt.barrier is not None:
                barrier, nbytes = self._find_barrier(stmt.barrier, env), tile.tile_bytes
        self._emit_events(scope.agents, Begin(cell, self.executed, content, barrier, nbytes))

    def _trace_work(self, stmt: Stmt, env: Env, scope: AgentScope, at: IterationVector) -> None:
        queue = PRODUCTS if isinstance(stmt, Matmul) else None
        reads = [self._find_cell(box, env) for box in find_shared_reads(stmt, self.tiles)]
        writes = [
            (self._find_cell(box, env), box.shape == self.tiles[box.tensor].tile)
            for box in find_shared_writes(stmt, self.tiles)
        ]
        for i in scope.agents:
            agent = self.out.agents[i]
            instance, contents = self._count_instance(agent, stmt, at)
            for n, cell in enumerate(reads):
                content = contents[n] if contents is not None else None
                agent.events.append(Read(cell, self.executed, content, queue))
            if writes:
                written = self.steps.numbers.number_written(instance, agent.times[instance] - 1)
                agent.events += [Write(cell, self.executed, written, whole) for cell, whole in writes]

    def _trace_store(self, stmt: Store, env: Env, scope: AgentScope, at: IterationVector) -> None:
        """Emit a store; by TMA: fence, sync, then one thread issues the copy and, unless deferred, waits for it."""
        if not is_filled_by_tma(self.kernel, stmt.src.tensor):
            self._emit_events(scope.agents, Fence(everything=True))
            self._emit_events(scope.agents, SyncThreads(scope.role))
        for i in scope.agents:
            _, contents = self._count_instance(self.out.agents[i], stmt, at)
            if i == scope.role[0]:
                content = contents[0] if contents is not None else None
                self._emit_events((i,), Read(self._find_cell(stmt.src, env), self.executed, content, BULK))
                if stmt not in self.deferred:
                    self._emit_events((i,), Await(BULK, 0))

    def _count_instance(self, agent: Agent, stmt: Stmt, at: IterationVector) -> tuple[int, tuple[int, ...] | None]:
        """Count one more execution; return the instance and what it reads (None if the source has fewer)."""
        instance = self.steps.numbers.number_instance(stmt, at)
        times = self.steps.reads.get(instance, [])
        done = agent.times[instance] = agent.times.get(instance, 0) + 1
        agent.work.append(instance)
        return instance, times[done - 1] if done <= len(times) else None

    def _emit_events(self, agents: tuple[int, ...], event: Event) -> None:
        for i in agents:
            self.out.agents[i].events.append(event)

    def _find_barrier(self, barrier: BarrierSlot, env: Env) -> int:
        return self.cells.find_cell(barrier.name, evaluate_index(barrier.slot, env))

    def _find_cell(self, box: Box, env: Env) -> int:
        return self.cells.find_cell(box.tensor, 0 if box.slot is None else evaluate_index(box.slot, env))


def _make_agents(role: str, threads: int) -> list[Agent]:
    if not threads:
        return []
    more = threads // WARP - 1
    agents = [Agent(f"{role}, first thread", 1, 1), Agent(f"{role}, first warp", WARP - 1, 0)]
    if more:
        agents.append(Agent(f"{role}, second warp", WARP, 1))
    if more > 1:
        agents.append(Agent(f"{role}, other warps", (more - 1) * WARP, more - 1))
    return agents
