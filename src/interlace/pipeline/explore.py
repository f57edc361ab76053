"""All states of one block, as its agents may interleave and its copies may land.

The state is the position of each agent in its events, every mbarrier, the content of every part, and the copies under
way, each of which may land at any moment. In each state:

- what an agent reads before its next event is there, complete, and of the step that the source says;
- no copy begins into a part on which another is under way;
- barriers are alive where they are used, idle where they end, and get the arrivals and bytes that they expect;
- a wait that could pass still can (no phase overtakes a waiter); some event is possible until all is done.

As enabled events stay enabled and commute, all runs do the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from interlace.core.errors import (
    CountHazard,
    EarlyReadHazard,
    HazardError,
    LifetimeHazard,
    OverwriteHazard,
    PipelineError,
    StuckHazard,
)
from interlace.pipeline.agents import (
    Agent,
    Arrival,
    Barrier,
    Begin,
    Commit,
    End,
    Event,
    Init,
    Meet,
    Part,
    Reading,
    Traces,
    Wait,
    Write,
)
from interlace.pipeline.mbarrier import MBarrier

#: Where an exploration gives up, before it fills the memory.
MOST_STATES = 1_000_000
#: A copy under way: its parts with their contents, its barrier, bytes by TMA, arrivals by cp.async.
Flight = tuple[tuple[tuple[Part, int], ...], Barrier, int, int]
#: One step of a run: an agent with its event, or what lands.
Label = tuple[str, Event] | tuple[tuple[Part, int], ...] | None


class _State(NamedTuple):
    """Everything that may differ between two moments; parts by content number, negative while a copy is under way."""

    at: tuple[int, ...]
    barriers: tuple[MBarrier | None, ...]
    parts: tuple[int, ...]
    flights: frozenset[Flight]


@dataclass
class Explorer:
    """All interleavings of the agents' events."""

    name: str
    tensor: str
    agents: list[Agent]
    traces: Traces
    barriers: dict[Barrier, int] = field(default_factory=dict)
    parts: dict[Part, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for event in (e for agent in self.agents for e in agent.events):
            if isinstance(event, Begin | Write):
                self.parts.setdefault(event.part, len(self.parts))
            if not isinstance(event, Meet | Write) and event.barrier is not None:
                self.barriers.setdefault(event.barrier, len(self.barriers))
        self.of_slot: dict[tuple[str, int], list[Part]] = {}
        for part in self.parts:
            self.of_slot.setdefault(part[:2], []).append(part)

    def start(self) -> _State:
        return _State((0,) * len(self.agents), (None,) * len(self.barriers), (0,) * len(self.parts), frozenset())

    def explore(self) -> int:
        """Visits every reachable state; returns how many."""
        start = self.start()
        came: dict[_State, tuple[_State | None, Label]] = {start: (None, None)}
        todo = [start]
        stuck: StuckHazard | None = None
        while todo:
            state = todo.pop()
            try:
                following = list(self._following(state))
                if not following:
                    self._check_end(state)
                if len(came) > MOST_STATES:
                    raise PipelineError(self._about(f"over {MOST_STATES} states; use smaller extents, or fewer stages"))
                for label, after in following:
                    if after not in came:
                        came[after] = (state, label)
                        self._check_reads(state, after)
                        self._check_waits(state, after)
                        todo.append(after)
            except HazardError as error:
                told = type(error)(f"{error}; after {self._path(came, state)}")
                if not isinstance(told, StuckHazard):
                    raise told from None
                stuck = stuck or told  # another interleaving may show data going wrong, which says more
        if stuck is not None:
            raise stuck
        return len(came)

    def run_once(self) -> None:
        """One run to the end, to show that all waits of all tensors complete together."""
        state = self.start()
        while True:
            step = next(self._following(state), None)
            if step is None:
                break
            state = step[1]
        self._check_end(state)

    def _following(self, state: _State) -> Iterator[tuple[Label, _State]]:
        """Every state one event later."""
        for i, agent in enumerate(self.agents):
            position = state.at[i]
            if position < len(agent.events):
                after = self._step(state, i, agent.events[position])
                if after is not None:
                    yield (agent.name, agent.events[position]), after
        for flight in state.flights:
            yield flight[0], self._land(state, flight)

    def _step(self, state: _State, i: int, event: Event) -> _State | None:
        at = (*state.at[:i], state.at[i] + 1, *state.at[i + 1 :])
        match event:
            case Meet():
                if i != event.scope[0] or any(self._next(state, j) != event for j in event.scope):
                    return None
                at = tuple(p + 1 if j in event.scope else p for j, p in enumerate(state.at))
                return _State(at, state.barriers, state.parts, state.flights)
            case Wait():
                alive = self._alive(state, event.barrier, "waits for")
                return _State(at, state.barriers, state.parts, state.flights) if alive.passes(event.parity) else None
            case Init():
                if state.barriers[self.barriers[event.barrier]] is not None:
                    raise LifetimeHazard(self._about(f"{_barrier(event.barrier)} is initialised while it lives"))
                fresh = self._set(state, event.barrier, MBarrier.fresh(event.arrivals))
                return _State(at, fresh, state.parts, state.flights)
            case End():
                alive = self._alive(state, event.barrier, "ends")
                if not alive.idle or any(flight[1] == event.barrier for flight in state.flights):
                    raise CountHazard(
                        self._about(f"{_barrier(event.barrier)} ends while arrivals or bytes are pending")
                    )
                return _State(at, self._set(state, event.barrier, None), state.parts, state.flights)
            case Arrival():
                barriers = self._arrive(state, event.barrier, event.arrivals, event.bytes)
                return _State(at, barriers, state.parts, state.flights)
            case Write():
                return _State(at, state.barriers, self._fill(state, event.part, event.number), state.flights)
            case Begin():
                flights = state.flights
                if event.barrier is not None:
                    self._alive(state, event.barrier, "copies to")
                    flights |= {(((event.part, event.number),), event.barrier, event.bytes, 0)}
                return _State(at, state.barriers, self._fill(state, event.part, -event.number), flights)
            case Commit():
                flights = state.flights | {(event.copies, event.barrier, 0, event.arrivals)}
                return _State(at, state.barriers, state.parts, flights)

    def _land(self, state: _State, flight: Flight) -> _State:
        copies, barrier, nbytes, arrivals = flight
        parts = list(state.parts)
        for part, number in copies:
            parts[self.parts[part]] = number
        if arrivals:
            barriers = self._arrive(state, barrier, arrivals, 0)
        else:
            barriers = self._set(state, barrier, self._alive(state, barrier, "completes").complete(nbytes))
        return _State(state.at, barriers, tuple(parts), state.flights - {flight})

    def _next(self, state: _State, agent: int) -> Event | None:
        events = self.agents[agent].events
        return events[state.at[agent]] if state.at[agent] < len(events) else None

    def _alive(self, state: _State, barrier: Barrier, what: str) -> MBarrier:
        value = state.barriers[self.barriers[barrier]]
        if value is None:
            raise LifetimeHazard(self._about(f"something {what} {_barrier(barrier)}, which is not initialised"))
        return value

    def _arrive(self, state: _State, barrier: Barrier, arrivals: int, nbytes: int) -> tuple[MBarrier | None, ...]:
        after = self._alive(state, barrier, "arrives on").arrive(arrivals, nbytes)
        if after.pending < 0:
            raise CountHazard(
                self._about(f"{_barrier(barrier)} gets more than its {after.needed} arrivals in a phase")
            )
        return self._set(state, barrier, after)

    def _set(self, state: _State, barrier: Barrier, value: MBarrier | None) -> tuple[MBarrier | None, ...]:
        i = self.barriers[barrier]
        return (*state.barriers[:i], value, *state.barriers[i + 1 :])

    def _fill(self, state: _State, part: Part, number: int) -> tuple[int, ...]:
        i = self.parts[part]
        if state.parts[i] < 0:
            raise OverwriteHazard(self._about(f"slot {part[1]} is written while a copy into it is under way"))
        return (*state.parts[:i], number, *state.parts[i + 1 :])

    def _check_reads(self, before: _State, after: _State) -> None:
        """What each agent may be reading now is there."""
        for i, agent in enumerate(self.agents):
            readings = agent.readings.get(after.at[i])
            if readings and (before.at[i] != after.at[i] or before.parts != after.parts):
                for reading in readings:
                    self._check_reading(after, reading, agent.name)

    def _check_reading(self, state: _State, reading: Reading, agent: str) -> None:
        parts = self.of_slot.get((reading.tensor, reading.slot), [])
        for part in parts:
            number = state.parts[self.parts[part]]
            contents = self.traces.origins[part]
            if number > 0 and reading.origin in (contents[number - 1], None):
                continue
            # Is what it should hold still to come, or was it there before?
            coming = contents[max(abs(number) - 1, 0) :] if number < 0 else contents[number:]
            if reading.origin is None or reading.origin in coming:
                raise EarlyReadHazard(
                    self._about(f"{agent} reads slot {reading.slot} for {reading.origin} before it is full")
                )
            raise OverwriteHazard(
                self._about(f"slot {reading.slot} is overwritten while {agent} may still read {reading.origin}")
            )
        if not parts:
            raise EarlyReadHazard(self._about(f"{agent} reads slot {reading.slot}, which is never written"))

    def _check_waits(self, before: _State, after: _State) -> None:
        """A wait that could pass before still can: no phase overtakes a waiter."""
        for i in range(len(self.agents)):
            event = self._next(after, i)
            if before.at[i] == after.at[i] and isinstance(event, Wait):
                was, now = (s.barriers[self.barriers[event.barrier]] for s in (before, after))
                if was is not None and was.passes(event.parity) and not (now is not None and now.passes(event.parity)):
                    raise StuckHazard(
                        self._about(f"{self.agents[i].name} misses parity {event.parity} of {_barrier(event.barrier)}")
                    )

    def _check_end(self, state: _State) -> None:
        """Nothing more can happen: all must be done and nothing pending."""
        left = [(agent.name, self._next(state, i)) for i, agent in enumerate(self.agents)]
        stays = [f"{name} stays at: {_say(event)}" for name, event in left if event is not None]
        if stays:
            raise StuckHazard(self._about(f"{', '.join(stays)}; nothing can complete this"))
        for barrier, i in self.barriers.items():
            if state.barriers[i] is not None:
                raise LifetimeHazard(self._about(f"{_barrier(barrier)} is never invalidated; add it at the end"))
        if any(number < 0 for number in state.parts):
            raise CountHazard(self._about("copies are never waited for"))

    def _about(self, what: str) -> str:
        of = f", {self.tensor!r}" if self.tensor else ""
        return f"kernel {self.name!r}{of}: {what}"

    def _path(self, came: dict[_State, tuple[_State | None, Label]], state: _State) -> str:
        """The last events on the way to ``state``."""
        labels: list[str] = []
        at: _State | None = state
        while at is not None and len(labels) < 6:
            at, label = came[at]
            labels.append(_say_label(label))
        return "; ".join(reversed(labels))


def _say_label(label: Label) -> str:
    if label is None:
        return "start"
    if isinstance(label[0], str):
        return f"{label[0]}: {_say(label[1])}"
    return "a copy lands: " + ", ".join(f"{part[0]}{{{part[1]}}} number {number}" for part, number in label)


def _barrier(barrier: Barrier) -> str:
    return f"{barrier[0]}{{{barrier[1]}}}"


def _say(event: Event) -> str:
    match event:
        case Meet():
            return "sync"
        case Init():
            return f"init {_barrier(event.barrier)}"
        case End():
            return f"invalidate {_barrier(event.barrier)}"
        case Arrival():
            expect = f", expect {event.bytes} bytes" if event.bytes else ""
            return f"arrive {_barrier(event.barrier)}{expect}"
        case Wait():
            return f"wait {_barrier(event.barrier)}, parity {event.parity}"
        case Begin():
            return f"load {event.part[0]}{{{event.part[1]}}} number {event.number}"
        case Commit():
            return f"arrive {_barrier(event.barrier)} when copies have landed"
        case Write():
            return f"write {event.part[0]}{{{event.part[1]}}} number {event.number}"
