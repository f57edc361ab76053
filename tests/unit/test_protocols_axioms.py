"""The machine of views finds exactly what axioms allow, on random programs of three workers.

The oracle knows no views. It draws every way in which loads may read from stores, and keeps those in which order by
program and synchronisation (``hb``) does not contradict what was read: coherence, atomicity and no values out of thin
air, as in RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer, "Repairing sequential consistency in C/C++11", PLDI 2017), which
PTX shares without sequential consistency (PTX ISA 8.5, 8.10). Words are stored by one worker, or added to by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from random import Random
from typing import Any

from ..protocols.check import Model, endings
from ..protocols.operations import Add, Fence, Load, Operation, Order, Process, Store

STORED, ADDED = ("x", "y"), ("c",)
WORDS = (*STORED, *ADDED)
Program = tuple[tuple[Operation, ...], ...]


def draw(seed: int) -> Program:
    """Worker 0 stores x and publishes it, worker 1 passes on what it finds, worker 2 looks; some with fences."""
    random = Random(seed)

    def store(word: str) -> Operation:
        return Store(word, 7, random.choice((Order.RELAXED, Order.RELEASE)))

    def add() -> Operation:
        return Add("c", 1, random.choice([*Order]))

    def load(*words: str) -> Operation:
        return Load(random.choice(words), random.choice((Order.RELAXED, Order.ACQUIRE)))

    def add_fence(first: Operation, second: Operation) -> tuple[Operation, ...]:
        return (first, *random.choice(((), (Fence(),))), second)

    passes = random.choice((add, lambda: store("y")))
    return (
        add_fence(store("x"), random.choice((add, lambda: load("y", "c")))()),
        random.choice(((add(),), add_fence(random.choice((add, lambda: load("x", "c")))(), passes()))),
        add_fence(random.choice((add, lambda: load("y", "c")))(), load("x", "y")),
    )


def find_outcomes(program: Program) -> set[tuple[Any, ...]]:
    """Return the tuples of values that the workers can be sent together, on the machine."""

    def process(worker: int) -> Process:
        def steps() -> Iterator[Any]:
            sent = []
            for operation in program[worker]:
                sent.append((yield operation))
            yield Store(f"sent {worker}", tuple(-1 if value is None else value for value in sent))

        return steps

    words = {**dict.fromkeys(WORDS, 0), **{f"sent {n}": () for n in range(len(program))}}
    model = Model("random", words, tuple(map(process, range(len(program)))))
    return {tuple(end[f"sent {n}"] for n in range(len(program))) for end in endings(model)}


@dataclass(frozen=True)
class Event:
    worker: int
    n: int
    operation: Operation | None  # None: what was there at the start

    @property
    def word(self) -> str | None:
        return getattr(self.operation, "word", None)


def list_allowed(program: Program) -> set[tuple[Any, ...]]:
    """The same, by the axioms."""
    events = [Event(w, n, op) for w, ops in enumerate(program) for n, op in enumerate(ops)]
    starts = {word: Event(-1, n, None) for n, word in enumerate(WORDS)}
    stores = {word: [e for e in events if isinstance(e.operation, Store) and e.word == word] for word in STORED}
    adds = [e for e in events if isinstance(e.operation, Add)]
    loads = [e for e in events if isinstance(e.operation, Load)]
    program_order = {(a, b) for a in events for b in events if a.worker == b.worker and a.n < b.n}
    program_order |= {(start, e) for start in starts.values() for e in events}
    outcomes = set()
    for chain in permutations(adds):
        written = {word: [starts[word], *stores.get(word, chain)] for word in WORDS}
        values = dict.fromkeys(starts.values(), 0)
        values |= {e: e.operation.value for word in STORED for e in stores[word]}
        values |= {e: n + 1 for n, e in enumerate(chain)}
        before = {e: written["c"][n] for n, e in enumerate(chain)}  # atomicity
        for sources in product(*(written[e.word] for e in loads)):
            reads = {**dict(zip(loads, sources, strict=True)), **before}
            if consistent(events, program_order, written, reads, before):
                outcomes.add(
                    tuple(
                        tuple(values[reads[e]] if e in reads else -1 for e in events if e.worker == worker)
                        for worker in range(len(program))
                    )
                )
    return outcomes


def consistent(
    events: Sequence[Event],
    program_order: set[tuple[Event, Event]],
    written: dict[str, list[Event]],
    reads: dict[Event, Event],
    before: dict[Event, Event],
) -> bool:
    from_store = {(w, r) for r, w in reads.items()}
    if cyclic(closure(program_order | from_store)):
        return False
    happens = closure(program_order | synchronise(events, program_order, reads, before))
    later = {(a, b) for order in written.values() for i, a in enumerate(order) for b in order[i + 1 :]}
    overwritten = {(r, b) for r, w in reads.items() for a, b in later if a == w and b != r}
    communicated = closure(from_store | later | overwritten)
    return not any((b, a) in communicated for a, b in happens) and not cyclic(happens)


def synchronise(
    events: Sequence[Event],
    program_order: set[tuple[Event, Event]],
    reads: dict[Event, Event],
    before: dict[Event, Event],
) -> set[tuple[Event, Event]]:
    """From a release, or a fence before a store, to an acquire, or a fence behind a load, of its chain."""
    fences = [e for e in events if isinstance(e.operation, Fence)]

    def releases(store: Event) -> list[Event]:
        found = [store] if store.operation is not None and store.operation.order.releases else []
        found += [f for f in fences if (f, store) in program_order]
        return found + (releases(before[store]) if store in before else [])

    def acquires(load: Event) -> list[Event]:
        found = [load] if load.operation.order.acquires else []
        return found + [f for f in fences if (load, f) in program_order]

    return {(a, b) for load, store in reads.items() for a in releases(store) for b in acquires(load)}


def closure(pairs: set[tuple[Event, Event]]) -> set[tuple[Event, Event]]:
    behind: dict[Event, set[Event]] = {}
    for a, b in pairs:
        behind.setdefault(a, set()).add(b)
    closed = set()
    for start in behind:
        stack, seen = [*behind[start]], set()
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack += behind.get(at, ())
        closed |= {(start, at) for at in seen}
    return closed


def cyclic(closed: set[tuple[Event, Event]]) -> bool:
    return any(a == b for a, b in closed)


def test_the_machine_finds_what_the_axioms_allow_and_nothing_else() -> None:
    programs = [draw(seed) for seed in range(150)]
    answers = [list_allowed(program) for program in programs]
    assert [seed for seed, program in enumerate(programs) if find_outcomes(program) != answers[seed]] == []
    assert len({len(answer) for answer in answers}) > 10  # not all alike
