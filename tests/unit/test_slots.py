"""The ring of the one launch as an automaton, every state of which is visited: whatever the items are, slots go well.

``launch/walk`` has the protocol. Items appear in it as stages alone, so a sequence of items is a number of stages, and
the roles of a ring of S slots repeat themselves after 2 S of them, when slots and parities are what they were.

    loaders      wait until the slot's round before was handed back (empty), then expect bytes, which land some time
    consumers    a few warps: wait until both loaders' bytes have landed, read, hand back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

WARPS = 2
Step = tuple[str, int]
Program = tuple[Step, ...]


@dataclass(frozen=True)
class Barrier:
    """An mbarrier: phases that are complete, and what the current one still expects."""

    phase: int
    arrivals: int
    count: int
    landing: int = 0

    def passes(self, parity: int) -> bool:
        """Whether a wait for the phase of this parity goes on."""
        return self.phase % 2 != parity

    def settled(self) -> Barrier:
        done = self.arrivals == 0 and self.landing == 0
        return Barrier(self.phase + 1, self.count, self.count) if done else self


@dataclass(frozen=True)
class State:
    """Where roles are in their programs, the barriers, and which stage each half of a slot holds (-1 - n: coming)."""

    at: tuple[int, ...]
    barriers: tuple[Barrier, ...]
    holds: tuple[int, ...]


def loader(stages: int) -> Program:
    return tuple(step for n in range(stages) for step in (("await empty", n), ("open", n)))


def consumer(stages: int, late: bool = False) -> Program:
    """``late``: a stage is handed back when the next one has been read, as those of products are."""
    steps: list[Step] = []
    for n in range(stages):
        steps += [("await full", n), ("read", n)]
        steps += [("release", n - 1)] * (late and n > 0) + [("release", n)] * (not late)
    return (*steps, *[("release", stages - 1)] * late)


def explore(slots: int, programs: tuple[Program, ...]) -> int:
    """Visit all states of two loaders and ``WARPS`` consumers; returns how many there are.

    Raises:
        AssertionError: a stage is read that is not there, or loaded over one that is still read, or nothing goes on.
    """
    full, empty = Barrier(0, 1, 1), Barrier(0, WARPS, WARPS)
    first = State((0,) * len(programs), (full,) * (2 * slots) + (empty,) * slots, (-1000,) * (2 * slots))
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
    for number, barrier in enumerate(state.barriers):
        if barrier.landing:
            n = -1 - state.holds[number]
            landed = with_barrier(state, number, replace(barrier, landing=0).settled())
            yield replace(landed, holds=changed(state.holds, number, n))
    for role, program in enumerate(programs):
        if state.at[role] == len(program):
            continue
        what, n = program[state.at[role]]
        slot, parity = n % slots, n // slots % 2
        after = replace(state, at=changed(state.at, role, state.at[role] + 1))
        if what == "await empty" and state.barriers[2 * slots + slot].passes(parity ^ 1):
            yield after
        if what == "await full" and all(state.barriers[half * slots + slot].passes(parity) for half in (0, 1)):
            yield after
        if what == "open":
            number = role * slots + slot
            readers = [at for at, p in zip(state.at[2:], programs[2:], strict=True) if ("read", n - slots) in p[at:]]
            assert not readers, f"stage {n} is loaded over stage {n - slots}, which is still read"
            barrier = state.barriers[number]
            opened = with_barrier(after, number, replace(barrier, arrivals=barrier.arrivals - 1, landing=1))
            yield replace(opened, holds=changed(state.holds, number, -1 - n))
        if what == "read":
            found = [state.holds[half * slots + slot] for half in (0, 1)]
            assert found == [n, n], f"stage {n} is read, and there is {found}"
            yield after
        if what == "release":
            number = 2 * slots + slot
            barrier = state.barriers[number]
            yield with_barrier(after, number, replace(barrier, arrivals=barrier.arrivals - 1).settled())


def with_barrier(state: State, number: int, barrier: Barrier) -> State:
    return replace(state, barriers=changed(state.barriers, number, barrier))


def changed(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


@pytest.mark.parametrize("late", [False, True])
def test_every_sequence_of_items_goes_well_if_all_roles_count_the_same_stages(late: bool) -> None:
    slots, stages = 2, 5  # one more than where slots and parities are those of the beginning
    assert explore(slots, (loader(stages), loader(stages), *(consumer(stages, late),) * WARPS)) > 300


def test_roles_that_count_different_stages_or_hold_them_too_long_are_found() -> None:
    stages = 4
    right, reads = loader(stages), consumer(stages)
    with pytest.raises(AssertionError, match="stuck"):
        explore(2, (right, right[:-2], reads, reads))
    with pytest.raises(AssertionError, match="is loaded over stage"):
        explore(2, (right, right, reads, tuple(sorted(reads, key=lambda step: (step[1], step[0] != "release")))))
    with pytest.raises(AssertionError, match="is read, and there is"):
        explore(2, (right, right, reads, tuple(step for step in reads if step[0] != "await full")))
    held = (*reads[:2], *reads[3:], reads[2])  # as a tile of an outer loop would be, while inner ones take all slots
    with pytest.raises(AssertionError, match="stuck"):
        explore(2, (right, right, held, held))
