"""The happens-before relation of the events in one block, for all of its runs at once.

One run is followed with vector clocks; copies land in it at once. It represents all runs, because runs can differ only
in the moments at which events happen, if two conditions hold for every event. Both are checked:

- An arrival, and a copy's bytes, count towards one phase only. The arriving agent knows that the phase before is
  complete, and all arrivals and bytes of a phase fill it exactly. By induction over phases, each phase then needs all
  of them, whenever they come.
- A wait is for one phase only. The parity selects either the first phase that the agent does not know to be complete,
  or the last one that it knows to be complete. The phase after the selected one completes only after the wait has
  passed. So no run overtakes a waiting agent, and no run lets it pass early.

Then possible events stay possible and every run performs all of them. An agent acquires the same with each event in
all runs, so happens-before is also the same. Two events that are unordered here come in either order in some run. So an
access that is not ordered with another (``accesses``) is a race, and if no race is found, no run has one.

The arrival that the hardware makes when cp.async copies have landed comes after all earlier events of its agent, but
releases only the copies (PTX ISA 8.6, cp.async.mbarrier.arrive, names no other accesses). An agent that waits for its
phase may not see what the arriving agent wrote, nor write over what it read. So a clock distinguishes what has
happened from what is known.

Worked example, a ring of one slot, one reader ``r`` and a loader ``l``; clocks are (l, r, phases of full, of empty):

    l: arrive full, copy      l = 1         ends with phase 1 of full
    r: wait full              (1, 1, 1, 0)  knows phase 1, so the copy has ended
    r: read; arrive empty     r = 2, 3      phase 1 of empty completes with (1, 3, 1, 1)
    l: wait empty; copy       (2, 3, 1, 1)  knows r = 3, so the read at 2 has ended
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from interlace.core.errors import CountHazard, LifetimeHazard, StuckHazard, UnknownHazard
from interlace.loops.meaning.steps import ValueNumbering
from interlace.loops.proof.accesses import BEGUN, CAME, FENCED, KNOWN, PARTS, AccessTracker, Clock, SharedAccess
from interlace.loops.proof.agents import Traces
from interlace.loops.proof.cells import Cells
from interlace.loops.proof.events import (
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


@dataclass
class _Life:
    """One lifetime of a barrier; phases are counted through all of its lifetimes.

    Attributes:
        first: number of its first phase.
        known: clock acquired from each complete phase, from the first on.
        copied: phases that copies complete, not only arrivals.
        waits: waiting agents and their times, by phase.
    """

    needed: int
    first: int
    pending: int
    bytes: int
    arriving: Clock
    known: list[Clock] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    waits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def phase(self) -> int:
        """Number of the current phase."""
        return self.first + len(self.known)

    @property
    def is_idle(self) -> bool:
        """True if no event of the current phase has happened yet."""
        return self.pending == self.needed and self.bytes == 0


def follow_all(traces: Traces, cells: Cells, numbers: ValueNumbering) -> int:
    """Follow one run of a block and return the number of its events.

    Raises:
        HazardError: some run fails; the subclass names the kind of hazard.
    """
    return _BlockRun(traces, cells, numbers).run()


class _BlockRun:
    def __init__(self, traces: Traces, cells: Cells, numbers: ValueNumbering) -> None:
        self.agents = traces.agents
        self.cells = cells
        self.width = len(self.agents) + cells.count - cells.first_barrier
        self.clocks: list[Clock] = [self._make_clock() for _ in self.agents]
        self.at = [0] * len(self.agents)
        self.phases = [0] * cells.count
        self.lives: dict[int, _Life] = {}
        self.copies: list[list[SharedAccess]] = [[] for _ in self.agents]
        self.reads: list[dict[str, list[SharedAccess]]] = [{} for _ in self.agents]
        self.missed: list[StuckHazard] = []
        self.alone = 0
        coming: dict[int, set[int]] = {}
        for event in (e for agent in self.agents for e in agent.events):
            if isinstance(event, Write | Begin):
                coming.setdefault(event.cell, set()).add(event.content)
        self.memory = AccessTracker(cells, numbers, coming, [agent.name for agent in self.agents])

    def run(self) -> int:
        moved = True
        while moved:
            moved = False
            for i in range(len(self.agents)):
                while (event := self._peek(i)) is not None and self._step(i, event):
                    moved = True
        self._check_end()
        return sum(self.at)

    def _peek(self, i: int) -> Event | None:
        events = self.agents[i].events
        return events[self.at[i]] if self.at[i] < len(events) else None

    def _step(self, i: int, event: Event) -> bool:
        """Execute the next event of agent ``i`` if possible; return True if it was."""
        if isinstance(event, SyncThreads):
            return self._sync_threads(event)
        clock = self.clocks[i]
        clock[:FENCED, i] += 1
        if isinstance(event, Wait):
            if not self._wait(i, event):
                clock[:FENCED, i] -= 1
                return False
        else:
            self._apply(i, event, clock)
        self.at[i] += 1
        return True

    def _apply(self, i: int, event: Event, clock: Clock) -> None:
        match event:
            case Read():
                queue = event.queue
                ends = (i, _read_time(clock, i)) if queue is None else None
                access = SharedAccess(i, event.instance, False, queue is not None, event.content, ends)
                if queue is not None:
                    self.reads[i].setdefault(queue, []).append(access)
                self.memory.touch(event.cell, access, clock)
            case Write():
                access = SharedAccess(i, event.instance, True, False, event.content, (i, _read_time(clock, i)))
                self.memory.touch(event.cell, access, clock, whole=event.whole)
            case Begin():
                self._begin(i, event, clock)
            case Await():
                self._await(i, event, clock)
            case Fence():
                if event.everything:
                    np.maximum(clock[FENCED:], clock[KNOWN], out=clock[FENCED:])
                else:
                    clock[BEGUN, i] = clock[KNOWN, i]  # of its own initialisations
            case Init():
                self._init(i, event, clock)
            case End():
                self._end(i, event, clock)
            case Arrival():
                life = self._use(i, event.cell, clock)
                self._arrive(i, life, event.cell, event.arrivals, event.bytes)
            case Commit():
                life = self._use(i, event.cell, clock, later=True)
                life.copied.add(life.phase)
                for access in self.copies[i]:
                    access.end = self._find_entry(event.cell), life.phase + 1
                self.copies[i] = []
                self._arrive(i, life, event.cell, event.arrivals, 0, releases=False)

    def _sync_threads(self, event: SyncThreads) -> bool:
        if any(self._peek(j) != event for j in event.scope):
            return False
        clocks = [self.clocks[j] for j in event.scope]
        for j, clock in zip(event.scope, clocks, strict=True):
            clock[:FENCED, j] += 1
        known = np.maximum.reduce(clocks)
        for j in event.scope:
            self.clocks[j] = known.copy()
            self.at[j] += 1
        return True

    def _begin(self, i: int, event: Begin, clock: Clock) -> None:
        access = SharedAccess(i, event.instance, True, event.barrier is not None, event.content, None)
        if event.barrier is None:
            access.is_cp_async = True
            self.copies[i].append(access)
            self.memory.touch(event.cell, access, clock)
            return
        life = self._use(i, event.barrier, clock, copy=True)
        life.copied.add(life.phase)
        access.end = self._find_entry(event.barrier), life.phase + 1
        self.memory.touch(event.cell, access, clock)
        life.bytes -= event.bytes
        if life.bytes < 0:
            raise CountHazard(
                f"{self.cells.label(event.barrier)} may get {event.bytes} bytes before it expects them; "
                "expect them first"
            )
        self._complete(event.barrier, life)

    def _await(self, i: int, event: Await, clock: Clock) -> None:
        reads = self.reads[i].get(event.queue, [])
        groups = list(dict.fromkeys(access.instance for access in reads))
        kept = groups[len(groups) - event.pending :] if event.pending else []
        for access in reads:
            if access.instance not in kept:
                access.end = i, _read_time(clock, i)
        self.reads[i][event.queue] = [access for access in reads if access.instance in kept]

    def _init(self, i: int, event: Init, clock: Clock) -> None:
        if event.cell in self.lives:
            raise LifetimeHazard(f"{self.cells.label(event.cell)} is initialised while it lives; invalidate it first")
        self.memory.touch(
            event.cell, SharedAccess(i, self._make_instance(), True, False, 0, (i, _read_time(clock, i))), clock
        )
        first = self.phases[event.cell]
        clock[:FENCED, self._find_entry(event.cell)] = first
        self.lives[event.cell] = _Life(event.arrivals, first, event.arrivals, 0, self._make_clock())

    def _end(self, i: int, event: End, clock: Clock) -> None:
        life = self.lives.get(event.cell)
        if life is None:
            raise LifetimeHazard(f"{self.cells.label(event.cell)} ends, which is not initialised; initialise it once")
        if not life.is_idle or self._find_first_unknown(event.cell, life, clock) < life.phase:
            raise CountHazard(
                f"{self.cells.label(event.cell)} ends while arrivals or bytes are pending; wait for every phase before"
            )
        self.memory.touch(
            event.cell, SharedAccess(i, self._make_instance(), True, False, 0, (i, _read_time(clock, i))), clock
        )
        del self.lives[event.cell]

    def _use(self, i: int, cell: int, clock: Clock, *, copy: bool = False, later: bool = False) -> _Life:
        """Record a use of a barrier in the current phase by an agent, a bulk copy, or (``later``) cp.async copies."""
        life = self.lives.get(cell)
        if life is None:
            raise LifetimeHazard(f"{self.agents[i].name} uses {self.cells.label(cell)}, which is not initialised")
        end = (self._find_entry(cell), life.phase + 1) if copy or later else (i, _read_time(clock, i))
        self.memory.touch(
            cell, SharedAccess(i, self._make_instance(), False, copy, None, end, is_cp_async=later), clock
        )
        if copy and self._find_first_unknown(cell, life, clock) < life.phase:
            raise CountHazard(
                f"{self.cells.label(cell)} may get bytes in a phase that does not expect them; expect them first"
            )
        return life

    def _find_first_unknown(self, cell: int, life: _Life, clock: Clock) -> int:
        """Return the first phase not known to be complete under this clock; knowing all arrivals implies the phase."""
        entry, agents = self._find_entry(cell), len(self.agents)
        came = clock[CAME]
        while came[entry] < life.phase and came[entry] not in life.copied:
            arrived = life.known[came[entry] - life.first][CAME]
            if (came[:agents] < arrived[:agents]).any():
                break
            came[entry] += 1
        return int(came[entry])

    def _make_clock(self) -> Clock:
        return np.zeros((PARTS, self.width), np.int64)

    def _make_instance(self) -> int:
        """Return a new instance for an event that no other agent shares."""
        self.alone -= 1
        return self.alone

    def _arrive(self, i: int, life: _Life, cell: int, arrivals: int, nbytes: int, *, releases: bool = True) -> None:
        clock = self.clocks[i]
        if self._find_first_unknown(cell, life, clock) < life.phase or life.pending < arrivals:
            raise CountHazard(
                f"{self.cells.label(cell)} gets more than its {life.needed} arrivals in a phase, from "
                f"{self.agents[i].name}; wait for the phase before"
            )
        life.pending -= arrivals
        life.bytes += nbytes
        told = slice(None) if releases else CAME
        np.maximum(life.arriving[told], clock[told], out=life.arriving[told])
        self._complete(cell, life)

    def _complete(self, cell: int, life: _Life) -> None:
        """End the phase if nothing of it is pending; report agents that may still wait for the phase before."""
        if life.pending or life.bytes:
            return
        phase = life.phase
        for agent, time in life.waits.pop(phase - 1, ()):
            if life.arriving[CAME, agent] < time:
                self._miss(agent, cell, phase - 1 - life.first)
        life.arriving[:FENCED, self._find_entry(cell)] = self.phases[cell] = phase + 1
        life.known.append(life.arriving)
        life.pending, life.arriving = life.needed, self._make_clock()

    def _wait(self, i: int, event: Wait) -> bool:
        life = self.lives.get(event.cell)
        clock, who = self.clocks[i], self.agents[i].name
        if event.parity not in (0, 1):
            raise UnknownHazard(f"{who} waits for parity {event.parity} of {self.cells.label(event.cell)}; use 0 or 1")
        if life is None or clock[KNOWN, self._find_entry(event.cell)] < life.first:
            raise LifetimeHazard(f"{who} waits for {self.cells.label(event.cell)}, which is not initialised there")
        known = self._find_first_unknown(event.cell, life, clock) - life.first
        phase = known - 1 if (known - 1) % 2 == event.parity else known
        if life.phase - life.first <= phase:
            return False
        self._use(i, event.cell, clock)
        if life.phase - life.first > phase + 1:
            self._miss(i, event.cell, phase)
        life.waits.setdefault(life.first + phase, []).append((i, _read_time(clock, i)))
        if phase >= 0:
            np.maximum(clock, life.known[phase], out=clock)
        return True

    def _miss(self, i: int, cell: int, phase: int) -> None:
        self.missed.append(
            StuckHazard(
                f"{self.agents[i].name} misses parity {phase % 2} of {self.cells.label(cell)}: the phase after may "
                "complete before it waits; let that need its arrival"
            )
        )

    def _check_end(self) -> None:
        """Check, when no agent can advance, that all agents are done and nothing is pending."""
        if self.missed:
            raise self.missed[0]
        left = [(agent.name, self._peek(i)) for i, agent in enumerate(self.agents)]
        stays = [f"{name} stays at: {self._describe(event)}" for name, event in left if event is not None]
        if stays:
            raise StuckHazard(f"{', '.join(stays)}; nothing can complete this")
        for cell in self.lives:
            raise LifetimeHazard(f"{self.cells.label(cell)} is never invalidated; add it at the end")
        if any(self.copies) or any(reads for queues in self.reads for reads in queues.values()):
            raise CountHazard("copies are never waited for; wait before the block ends")

    def _find_entry(self, cell: int) -> int:
        """Return the index of a barrier's phases in a clock."""
        return len(self.agents) + cell - self.cells.first_barrier

    def _describe(self, event: Event) -> str:
        match event:
            case SyncThreads():
                return "sync"
            case Wait():
                return f"wait {self.cells.label(event.cell)}, parity {event.parity}"
        return type(event).__name__.lower()


def _read_time(clock: Clock, agent: int) -> int:
    """Return the number of its own events that an agent has reached."""
    return int(clock[KNOWN, agent])
