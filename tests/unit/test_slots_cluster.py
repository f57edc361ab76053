"""The rings of a cluster of two as an automaton, every state of which is visited; ``csrc/cluster/cluster.cuh`` has the
protocol.

Items are stages, as in ``test_slots``. A stage is two shares, one by each block, which land in both blocks whenever
they like. Where a cluster draws tickets, the first block tells the other of an item before it opens its first stage.

    loaders      (tell or hear); wait until both blocks' consumers handed back the slot's round before; expect two
                 shares; load one into both blocks
    consumers    one in each block: wait until both shares have landed, read, hand back to both
    all          meet before they end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

BLOCKS = (0, 1)
Step = tuple[str, int]
Program = tuple[Step, ...]
Programs = tuple[Program, Program, Program, Program]  # loaders, then consumers, of each block


@dataclass(frozen=True)
class Barrier:
    """An mbarrier: phases that are complete, and arrivals and shares that the current one lacks (has early)."""

    phase: int
    arrivals: int
    count: int
    shares: int = 0

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def after(self, arrivals: int, shares: int) -> Barrier:
        left = replace(self, arrivals=self.arrivals - arrivals, shares=self.shares + shares)
        done = left.arrivals == 0 and left.shares == 0
        return Barrier(self.phase + 1, self.count, self.count) if done else left


@dataclass(frozen=True)
class State:
    """Where roles are; barriers and what shares each slot holds, by block; shares on their way (stage, from, to);
    the item in each word."""

    at: tuple[int, ...]
    full: tuple[tuple[Barrier, ...], ...]
    empty: tuple[tuple[Barrier, ...], ...]
    holds: tuple[tuple[tuple[int, int], ...], ...]
    flying: frozenset[tuple[int, int, int]]
    words: tuple[int, ...]


def programs(stages: int, *, told: bool = False, handed: tuple[int, ...] = BLOCKS, meet: bool = True) -> Programs:
    """Build items of one stage each, the least; consumers hand back to the blocks ``handed`` away."""

    def loader(block: int) -> Program:
        steps = []
        for n in range(stages):
            steps += [(("tell", "hear")[block], n)] * told + [("await empty", n), ("open", n)]
        return (*steps, *[("meet", 0)] * meet)

    def consumer(block: int) -> Program:
        steps = []
        for n in range(stages):
            steps += [("await full", n), ("read", n), *((f"release {(block + to) % 2}", n) for to in handed)]
        return (*steps, *[("meet", 0)] * meet)

    return loader(0), loader(1), consumer(0), consumer(1)


def explore(slots: int, roles: Programs, words: int = 1) -> int:
    """Visit all states; returns how many there are.

    Raises:
        AssertionError: a stage is read that is not there, or written over one that is, bytes or arrivals come to a
            block that has ended, a word is lost, or nothing goes on.
    """
    ring = (Barrier(0, 1, 1),) * slots, (Barrier(0, len(BLOCKS), len(BLOCKS)),) * slots, ((-1, -1),) * slots
    first = State((0,) * 4, *((of,) * 2 for of in ring), frozenset(), (-1,) * words)
    seen, waiting = {first}, [first]
    while waiting:
        state = waiting.pop()
        following = list(successors(slots, roles, state))
        over = all(at == len(role) for at, role in zip(state.at, roles, strict=True))
        assert following or over, f"stuck at {[r[a : a + 1] for a, r in zip(state.at, roles, strict=True)]}"
        new = set(following) - seen
        seen |= new
        waiting += new
    return len(seen)


def successors(slots: int, roles: Programs, state: State) -> Iterator[State]:
    def here(block: int) -> None:
        ended = all(state.at[role] == len(roles[role]) for role in (block, 2 + block))
        assert not ended, f"something comes to block {block}, which has ended"

    for flight in state.flying:
        n, source, target = flight
        slot = n % slots
        here(target)
        readers = [step for step in roles[2 + target][state.at[2 + target] :] if step == ("read", n - slots)]
        assert not readers, f"stage {n} is written over stage {n - slots}, which is still read"
        barrier = state.full[target][slot].after(0, -1)
        held = change(state.holds[target][slot], source, n)
        yield replace(
            state,
            full=within(state.full, target, slot, barrier),
            holds=within(state.holds, target, slot, held),
            flying=state.flying - {flight},
        )
    for role, program in enumerate(roles):
        if state.at[role] == len(program):
            continue
        (what, n), block = program[state.at[role]], role % 2
        slot, parity = n % slots, n // slots % 2
        after = replace(state, at=change(state.at, role, state.at[role] + 1))
        if what == "tell":
            word = n % len(state.words)
            unheard = [s for s in roles[1][state.at[1] :] if s == ("hear", state.words[word])]
            assert not unheard, f"item {state.words[word]} is lost"
            yield replace(after, words=change(state.words, word, n))
        if what == "hear" and state.words[n % len(state.words)] == n:
            yield after
        if what == "await empty" and state.empty[block][slot].passes(parity ^ 1):
            yield after
        if what == "open":
            barrier = state.full[block][slot].after(1, len(BLOCKS))
            flying = state.flying | {(n, block, target) for target in BLOCKS}
            yield replace(after, full=within(state.full, block, slot, barrier), flying=flying)
        if what == "await full" and state.full[block][slot].passes(parity):
            yield after
        if what == "read":
            assert state.holds[block][slot] == (n, n), f"stage {n} is read, and there is {state.holds[block][slot]}"
            yield after
        if what.startswith("release"):
            target = int(what[-1])
            here(target)
            barrier = state.empty[target][slot].after(1, 0)
            yield replace(after, empty=within(state.empty, target, slot, barrier))
        if what == "meet" and all(r[a : a + 1] in ((("meet", 0),), ()) for a, r in zip(state.at, roles, strict=True)):
            yield after


def within(values: tuple, block: int, slot: int, value: object) -> tuple:
    return change(values, block, change(values[block], slot, value))


def change(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


SLOTS, STAGES = 2, 5  # one more than where slots and parities are those of the beginning


def test_every_sequence_of_groups_goes_well_if_blocks_open_the_same_stages() -> None:
    assert explore(SLOTS, programs(STAGES)) > 300


def test_a_word_more_than_stages_is_enough_where_one_block_draws_for_all() -> None:
    assert explore(SLOTS, programs(STAGES, told=True), SLOTS + 1) > 300
    with pytest.raises(AssertionError, match="is lost"):
        explore(SLOTS, programs(STAGES, told=True), SLOTS)


def test_what_only_one_block_knows_of_is_found() -> None:
    right = programs(STAGES)
    with pytest.raises(AssertionError, match="stuck"):  # fewer stages
        explore(SLOTS, (right[0], programs(STAGES - 1)[1], right[2], programs(STAGES - 1)[3]))
    with pytest.raises(AssertionError, match=r"is written over stage|is read, and there is|stuck"):
        explore(SLOTS, programs(STAGES, handed=(0, 0)))  # slots handed back twice to the own block
    with pytest.raises(AssertionError, match="which has ended"):
        explore(SLOTS, programs(STAGES, meet=False))
