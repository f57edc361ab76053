"""The ring of the megakernel as an automaton, every state of which is visited: whatever the items are, slots go well.

``ring/ring.cuh`` has the protocol. Items appear in it as stages alone, so a sequence of items is a number of stages,
and the roles of a ring of S slots repeat themselves after 2 S of them, when slots and parities are what they were. A
slot has two halves, of independent and of dependent operands, which are handed back together or apart.

    loaders      one of each half: wait until its slot's round before was handed back (empty), then expect bytes, which
                 land some time
    consumers    a few warps: wait until the bytes of a half, or of both, have landed, read, hand back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

WARPS = 2
INDEPENDENT, DEPENDENT = HALVES = (0, 1)
Step = tuple[str, int, tuple[int, ...]]  # what is done with which halves of a stage
Program = tuple[Step, ...]


@dataclass(frozen=True)
class Barrier:
    """An mbarrier: phases that are complete, and what the current one still expects."""

    phase: int
    arrivals: int
    count: int
    landing: int = 0

    def passes(self, parity: int) -> bool:
        """Return True if a wait for the phase of this parity goes on."""
        return self.phase % 2 != parity

    def settle(self) -> Barrier:
        done = self.arrivals == 0 and self.landing == 0
        return Barrier(self.phase + 1, self.count, self.count) if done else self


@dataclass(frozen=True)
class State:
    """Where roles are in their programs; of each half of a slot its barriers, and its stage (-1 - n: coming)."""

    at: tuple[int, ...]
    full: tuple[Barrier, ...]
    empty: tuple[Barrier, ...]
    holds: tuple[int, ...]


def loader(half: int, stages: int) -> Program:
    return tuple(step for n in range(stages) for step in (("await empty", n, (half,)), ("open", n, (half,))))


def consumer(stages: int, late: bool = False) -> Program:
    """``late``: a stage is handed back when the next one has been read, as those of products are."""
    steps: list[Step] = []
    for n in range(stages):
        steps += [("await full", n, HALVES), ("read", n, HALVES)]
        steps += [("release", n - 1, HALVES)] * (late and n > 0) + [("release", n, HALVES)] * (not late)
    return (*steps, *[("release", stages - 1, HALVES)] * late)


def holder(stages: int, at_once: int) -> Program:
    """Takes independent halves of some stages into registers, and hands them back, before it waits for the others."""
    steps: list[Step] = []
    for first in range(0, stages, at_once):
        for half in HALVES:
            for n in range(first, min(first + at_once, stages)):
                steps += [(what, n, (half,)) for what in ("await full", "read", "release")]
    return tuple(steps)


def explore(slots: int, programs: tuple[Program, ...]) -> int:
    """Visit all states of two loaders and ``WARPS`` consumers; returns how many there are.

    Raises:
        AssertionError: a stage is read that is not there, or loaded over one that is still read, or nothing goes on.
    """
    full, empty = Barrier(0, 1, 1), Barrier(0, WARPS, WARPS)
    first = State((0,) * len(programs), (full,) * (2 * slots), (empty,) * (2 * slots), (-1000,) * (2 * slots))
    seen, waiting = {first}, [first]
    while waiting:
        state = waiting.pop()
        following = list(successors(slots, programs, state))
        over = all(at == len(program) for at, program in zip(state.at, programs, strict=True))
        assert following or over, f"stuck at {[p[a : a + 1] for a, p in zip(state.at, programs, strict=True)]}"
        new = set(following) - seen
        seen |= new
        waiting += new
    return len(seen)


def successors(slots: int, programs: tuple[Program, ...], state: State) -> Iterator[State]:
    for place, barrier in enumerate(state.full):
        if barrier.landing:
            landed = change(state.full, place, replace(barrier, landing=0).settle())
            yield replace(state, full=landed, holds=change(state.holds, place, -1 - state.holds[place]))
    for role, program in enumerate(programs):
        if state.at[role] == len(program):
            continue
        what, n, halves = program[state.at[role]]
        parity, places = n // slots % 2, [half * slots + n % slots for half in halves]
        after = replace(state, at=change(state.at, role, state.at[role] + 1))
        if what == "await empty" and all(state.empty[place].passes(parity ^ 1) for place in places):
            yield after
        if what == "await full" and all(state.full[place].passes(parity) for place in places):
            yield after
        if what == "open":
            (half,), (place,) = halves, places
            ahead = [step for at, p in zip(state.at[2:], programs[2:], strict=True) for step in p[at:]]
            readers = [step for step in ahead if step[:2] == ("read", n - slots) and half in step[2]]
            assert not readers, f"stage {n} is loaded over stage {n - slots}, which is still read"
            barrier = state.full[place]
            opened = change(state.full, place, replace(barrier, arrivals=barrier.arrivals - 1, landing=1))
            yield replace(after, full=opened, holds=change(state.holds, place, -1 - n))
        if what == "read":
            found = [state.holds[place] for place in places]
            assert found == [n] * len(places), f"stage {n} is read, and there is {found}"
            yield after
        if what == "release":
            empty = state.empty
            for place in places:
                barrier = empty[place]
                empty = change(empty, place, replace(barrier, arrivals=barrier.arrivals - 1).settle())
            yield replace(after, empty=empty)


def change(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


def loaders(stages: int) -> tuple[Program, Program]:
    return loader(INDEPENDENT, stages), loader(DEPENDENT, stages)


@pytest.mark.parametrize("late", [False, True])
def test_every_sequence_of_items_goes_well_if_all_roles_count_the_same_stages(late: bool) -> None:
    slots, stages = 2, 5  # one more than where slots and parities are those of the beginning
    assert explore(slots, (*loaders(stages), *(consumer(stages, late),) * WARPS)) > 300


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_it_does_where_weights_are_taken_before_the_tokens_are_there(at_once: int) -> None:
    slots, stages = 2, 5
    assert explore(slots, (*loaders(stages), *(holder(stages, at_once),) * WARPS)) > 300
    mixed = (*holder(2, at_once), *((what, n + 2, halves) for what, n, halves in consumer(3)))
    assert explore(slots, (*loaders(stages), *(mixed,) * WARPS)) > 300


def test_roles_that_count_different_stages_or_hold_them_too_long_are_found() -> None:
    stages = 4
    (right, other), reads = loaders(stages), consumer(stages)
    with pytest.raises(AssertionError, match="stuck"):
        explore(2, (right, other[:-2], reads, reads))
    with pytest.raises(AssertionError, match="is loaded over stage"):
        explore(2, (right, other, reads, tuple(sorted(reads, key=lambda step: (step[1], step[0] != "release")))))
    with pytest.raises(AssertionError, match="is read, and there is"):
        explore(2, (right, other, reads, tuple(step for step in reads if step[0] != "await full")))
    held = (*reads[:2], *reads[3:], reads[2])  # as a tile of an outer loop would be, while inner ones take all slots
    with pytest.raises(AssertionError, match="stuck"):
        explore(2, (right, other, held, held))


def test_a_half_that_is_handed_back_before_it_is_in_registers_is_found() -> None:
    stages = 4
    early = list(holder(stages, 1))
    early[1], early[2] = early[2], early[1]  # of the first stage's independent half
    with pytest.raises(AssertionError, match="is loaded over stage"):
        explore(2, (*loaders(stages), holder(stages, 1), tuple(early)))
