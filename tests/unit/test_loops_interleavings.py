"""Lists of events that the proof accepts go right in every interleaving, found by trying them all.

Programs are those of ``test_loops_events`` with one event left out, doubled, moved or replaced, but for those in which
one statement has several events. The oracle walks through all states of two agents: an asynchronous copy lands at any
time after it began. It knows nothing of clocks, proxies and fences; two accesses race if they can come next to each
other in either order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from interlace.core.errors import HazardError
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

from ..thorough import some
from .test_loops_events import ACCEPTED, EMPTY, FULL, NUMBERS, REFUSED, S0, S1, Body, U, follow

SHARED = {S0: {S0, U}, U: {S0, U}, S1: {S1}, FULL: {FULL}, EMPTY: {EMPTY}}


class WrongError(Exception):
    """Some interleaving goes wrong."""


@dataclass(frozen=True)
class Barrier:
    """A live barrier: its phase, and what is still to come in that.

    Bytes may land before they are expected (the count of an mbarrier is signed), as the arrival that expects them is
    still to come in the same phase.
    """

    needed: int
    phase: int
    arrivals: int
    bytes: int

    def change(self, arrivals: int, nbytes: int) -> Barrier:
        if arrivals > self.arrivals:
            raise WrongError("an arrival too many")
        now = replace(self, arrivals=self.arrivals - arrivals, bytes=self.bytes + nbytes)
        if now.arrivals or now.bytes:
            return now
        return Barrier(self.needed, self.phase + 1, self.needed, 0)


@dataclass(frozen=True)
class Flying:
    """Work that goes on after its event: a copy, a read in a group, or arrivals that wait for the agent's copies."""

    agent: int
    event: Begin | Read | Commit


@dataclass(frozen=True)
class State:
    """Where the agents are, the barriers by cell, the contents of tiles, and what is under way, oldest first."""

    at: tuple[int, int]
    barriers: tuple[tuple[int, Barrier], ...]
    contents: tuple[tuple[int, int], ...]
    flying: tuple[Flying, ...]


def touches(event: Event) -> dict[int, bool]:
    """Cells that an event reads (False) or writes (True)."""
    match event:
        case Read():
            return {event.cell: False}
        case Write():
            return {event.cell: True}
        case Begin():
            return {event.cell: True} | ({event.barrier: False} if event.barrier is not None else {})
        case Init() | End():
            return {event.cell: True}
        case Arrival() | Commit() | Wait():
            return {event.cell: False}
    return {}


def conflict(x: Event, y: Event) -> bool:
    """Both touch some bytes, and one of them writes."""
    return any(
        (xw or yw) and other in SHARED[cell] for cell, xw in touches(x).items() for other, yw in touches(y).items()
    )


class Oracle:
    """Tries all interleavings of two agents; raises WrongError if one goes wrong."""

    def __init__(self, p: Body, q: Body) -> None:
        self.bodies = [list(p), list(q)]
        start = State((0, 0), (), (), ())
        seen, left = {start}, [start]
        while left:
            state = left.pop()
            after = list(self._moves(state))
            if not after:
                self._check_end(state)
            fresh = set(after) - seen
            seen |= fresh
            left += fresh

    def _event(self, state: State, agent: int) -> Event | None:
        body = self.bodies[agent]
        return body[state.at[agent]] if state.at[agent] < len(body) else None

    def _check_end(self, state: State) -> None:
        if any(self._event(state, agent) is not None for agent in (0, 1)):
            raise WrongError("an agent stays")
        if state.barriers or state.flying:
            raise WrongError("something is left")

    def _moves(self, state: State) -> Iterator[State]:
        events = [self._event(state, agent) for agent in (0, 1)]
        if all(isinstance(event, SyncThreads) for event in events):
            yield replace(state, at=(state.at[0] + 1, state.at[1] + 1))
        ready = [e for a, e in enumerate(events) if e is not None and self._is_ready(state, a, e)]
        if len(ready) == 2 and conflict(*ready):
            raise WrongError("a race")
        for agent, event in enumerate(events):
            if event is None or not self._is_ready(state, agent, event):
                continue
            if any(conflict(event, f.event) for f in state.flying if not isinstance(f.event, Commit)):
                raise WrongError("a race with what is under way")
            yield self._do(state, agent, event)
        for flying in state.flying:
            if (landed := self._land(state, flying)) is not None:
                yield landed

    def _is_ready(self, state: State, agent: int, event: Event) -> bool:
        match event:
            case SyncThreads():
                return False
            case Wait():
                barrier = dict(state.barriers).get(event.cell)
                if barrier is None or event.parity not in (0, 1):
                    raise WrongError("a wait for nothing")
                return barrier.phase % 2 != event.parity
            case Await():
                mine = [f.event.instance for f in state.flying if self._is_read(f, agent, event.queue)]
                return len(set(mine)) <= event.pending
        return True

    @staticmethod
    def _is_read(flying: Flying, agent: int, queue: str) -> bool:
        return flying.agent == agent and isinstance(flying.event, Read) and flying.event.queue == queue

    def _do(self, state: State, agent: int, event: Event) -> State:
        at = tuple(n + (a == agent) for a, n in enumerate(state.at))
        barriers, contents, flying = dict(state.barriers), dict(state.contents), state.flying
        for cell in touches(event):
            if cell in (FULL, EMPTY) and (cell in barriers) is isinstance(event, Init):
                raise WrongError("a barrier that lives, or does not")
        match event:
            case Init():
                barriers[event.cell] = Barrier(event.arrivals, 0, event.arrivals, 0)
            case End():
                ended = barriers.pop(event.cell)
                if (ended.arrivals, ended.bytes) != (ended.needed, 0):
                    raise WrongError("a barrier ends in a phase")
            case Arrival():
                barriers[event.cell] = barriers[event.cell].change(event.arrivals, event.bytes)
            case Read():
                if event.content is not None and contents.get(event.cell, 0) != event.content:
                    raise WrongError("another content")
                flying = (*flying, Flying(agent, event)) if event.queue is not None else flying
            case Write():
                for other in SHARED[event.cell] - {event.cell}:
                    contents[other] = 0
                before = contents.get(event.cell, 0)
                contents[event.cell] = NUMBERS.number_update(before, event.content, whole=event.whole)
            case Begin() | Commit():
                flying = (*flying, Flying(agent, event))
            case Fence() | Await() | Wait():
                pass
        return State((at[0], at[1]), tuple(sorted(barriers.items())), tuple(sorted(contents.items())), flying)

    def _land(self, state: State, done: Flying) -> State | None:
        barriers, contents = dict(state.barriers), dict(state.contents)
        place = state.flying.index(done)
        event = done.event
        if isinstance(event, Begin):
            for other in SHARED[event.cell] - {event.cell}:
                contents[other] = 0
            contents[event.cell] = event.content
            if event.barrier is not None:
                if event.barrier not in barriers:
                    raise WrongError("bytes on no barrier")
                barriers[event.barrier] = barriers[event.barrier].change(0, -event.bytes)
        elif isinstance(event, Commit):
            before = state.flying[:place]
            if any(f.agent == done.agent and isinstance(f.event, Begin) and f.event.barrier is None for f in before):
                return None  # its copies come first
            if event.cell not in barriers:
                raise WrongError("an arrival on no barrier")
            barriers[event.cell] = barriers[event.cell].change(event.arrivals, 0)
        elif any(self._is_read(f, done.agent, event.queue or "") for f in state.flying[:place]):
            return None  # groups are complete in order
        flying = state.flying[:place] + state.flying[place + 1 :]
        return State(state.at, tuple(sorted(barriers.items())), tuple(sorted(contents.items())), flying)


def instances(p: Body, q: Body) -> list[int]:
    """The statements of all accesses."""
    return [event.instance for event in (*p, *q) if isinstance(event, Read | Write | Begin)]


EVERY = ACCEPTED | {f"not {name}": (case.p, case.q) for name, case in REFUSED.items()}
PROGRAMS = {name: bodies for name, bodies in EVERY.items() if len({*instances(*bodies)}) == len(instances(*bodies))}


def edit_bodies(p: Body, q: Body, random: Random) -> tuple[Body, Body]:
    """One event of one agent is left out, doubled, moved by one, given to the other agent or replaced by another."""
    bodies = [list(p), list(q)]
    own = random.choice([0, 1]) if p and q else 0 if p else 1
    mine, other = bodies[own], bodies[1 - own]
    if not mine:
        return p, q
    at = random.randrange(len(mine))
    match random.randrange(5):
        case 0:
            del mine[at]
        case 1:
            mine.insert(at, anew(mine[at], p, q))
        case 2:
            mine.insert(max(at - 1, 0), mine.pop(at))
        case 3:
            other.insert(random.randint(0, len(other)), mine.pop(at))
        case 4:
            mine[at] = anew(random.choice(mine), p, q)
    return bodies[0], bodies[1]


def anew(event: Event, p: Body, q: Body) -> Event:
    """The same by another statement."""
    if isinstance(event, Read | Write | Begin):
        return event._replace(instance=max(instances(p, q)) + 1)
    return event


def goes_right(p: Body, q: Body) -> bool:
    try:
        Oracle(p, q)
    except WrongError:
        return False
    return True


def is_accepted(p: Body, q: Body, *, turned: bool) -> bool:
    try:
        follow(p, q, turned=turned)
    except HazardError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in ACCEPTED if name in PROGRAMS])
def test_what_is_accepted_by_hand_goes_right_in_every_interleaving(name: str) -> None:
    assert goes_right(*ACCEPTED[name])


@pytest.mark.parametrize("rounds", some([range(12), range(12, 600)], lambda rounds: rounds.start == 0), ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_accepted_go_right_whoever_is_followed_first(name: str, rounds: range) -> None:
    for seed in rounds:
        random = Random(f"{name} {seed}")
        p, q = PROGRAMS[name]
        for _ in range(random.choice((1, 1, 2))):
            p, q = edit_bodies(p, q, random)
        verdicts = [is_accepted(p, q, turned=turned) for turned in (False, True)]
        assert verdicts[0] == verdicts[1], (p, q)
        assert not verdicts[0] or goes_right(p, q), (p, q)
