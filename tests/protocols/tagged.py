"""LL words: data that are their own semaphore, as in the one launch.

A word holds data and the number of their publication, stored and loaded as one, in relaxed order. A reader polls the
word itself until the number is the one that it wants; a counter, relaxed too, only tells it when polling may pay. The
next publication overwrites the word. No fence orders that behind the reads of the last one: its writer has inputs that
every reader of the last made from what it read, in LL words again.

Who polls may be another warp than who computes: a loader puts what it found into a slot of shared memory and arrives
(release, scope of the block) at the barrier of the slot, whose other side waits for it (acquire), computes, and hands
the slot back in the same way.

Worked example, one writer, two readers, publication 2:

    reader 0    finds (20, 2) in x; stores (20, 2) in y 0
    reader 1    finds (20, 2) in x; stores (20, 2) in y 1
    writer      finds number 2 in y 0 and y 1; stores (30, 3) in x: both have read it
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .check import Model
from .errors import StaleReadError
from .operations import (
    ACQUIRE,
    BLOCK,
    RELAXED,
    RELEASE,
    Add,
    Await,
    Done,
    Load,
    Operation,
    Order,
    Process,
    Read,
    Store,
    Until,
    Value,
    Write,
    at_least,
)


@dataclass(frozen=True)
class Tagged:
    """Publications of one word.

    Attributes:
        reads: of each reader, the publications that it reads, from 1.
        tags: how many numbers there are before they repeat; None if they never do.
        awaits: readers whose words a writer has as inputs; those of the publication before all of theirs.
        whole: data and number are stored and loaded as one.
        polls: a reader polls the word; else the counter is all that it waits for.
        exact: a reader wants its number; else that or a later one.
        loaders: a reader has a worker that polls for it, and hands on what it found in a slot of their block.
        arrive, wait: orders of who arrives at a barrier of the slot, and of who waits for it.
        hands_back: a loader waits until the slot has been handed back before it fills it again.
    """

    reads: tuple[tuple[int, ...], ...] = ((1, 2, 3), (1, 2, 3))
    tags: int | None = None
    awaits: tuple[int, ...] = (0, 1)
    whole: bool = True
    polls: bool = True
    exact: bool = True
    hint: Order = RELAXED
    loaders: bool = False
    arrive: Order = RELEASE
    wait: Order = ACQUIRE
    hands_back: bool = True

    def model(self) -> Model:
        words: dict[str, Value] = {"x": (0, 0), "number of x": 0, "hint": 0}
        words |= {f"y {n}": (0, 0) for n in range(len(self.reads))}
        every = range(len(self.reads))
        readers = tuple(self._reader(n) for n in every)
        if self.loaders:
            words |= {f"{word} {n}": 0 for word in ("slot", "full", "empty") for n in every}
            readers = tuple(made(n) for n in every for made in (self._loader, self._consumer))
        blocks = (0, *(n + 1 for n in every for _ in range(2))) if self.loaders else None
        return Model("tagged words", words, (self._writer, *readers), sum(map(len, self.reads)), blocks)

    def _tag(self, number: int) -> int:
        return number if self.tags is None else number % self.tags

    def _writer(self, number: int = 1) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        if number > max(map(max, self.reads)):
            return None
        for reader in self.awaits:
            if number - 1 in self.reads[reader]:
                yield Await(f"y {reader}", _published(number - 1))
        if self.whole:
            yield Store("x", (number * 10, self._tag(number)))
        else:
            yield Store("x", (number * 10, 0))
            yield Store("number of x", self._tag(number))
        yield Add("hint", 1, self.hint)
        return (number + 1,)

    def _reader(self, n: int) -> Process:
        def process(at: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if at == len(self.reads[n]):
                return None
            number = self.reads[n][at]
            yield Await("hint", at_least(number), self.hint)
            data = yield from self._find(number)
            if data != number * 10:
                raise StaleReadError(f"publication {number} is read as {data}, and should be {number * 10}")
            yield Done(sum(map(len, self.reads[:n])) + at)
            yield Store(f"y {n}", (data, number))
            return (at + 1,)

        return process

    def _loader(self, n: int) -> Process:
        def process(at: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if at == len(self.reads[n]):
                return None
            number = self.reads[n][at]
            data = yield from self._find(number)
            if self.hands_back:
                yield Await(f"empty {n}", at_least(at), self.wait, BLOCK)
            yield Write(f"slot {n}", data)
            yield Add(f"full {n}", 1, self.arrive, BLOCK)
            return (at + 1,)

        return process

    def _consumer(self, n: int) -> Process:
        def process(at: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if at == len(self.reads[n]):
                return None
            number = self.reads[n][at]
            yield Await(f"full {n}", at_least(at + 1), self.wait, BLOCK)
            yield Read(f"slot {n}", number * 10)
            yield Add(f"empty {n}", 1, self.arrive, BLOCK)
            yield Done(sum(map(len, self.reads[:n])) + at)
            yield Store(f"y {n}", (number * 10, number))
            return (at + 1,)

        return process

    def _find(self, number: int) -> Generator[Operation, Any, int]:
        tag = self._tag(number)
        if not self.polls:
            data, _ = yield Load("x")
        elif self.whole:
            data, _ = yield Await("x", _published(tag, exact=self.exact))
        else:
            yield Await("number of x", at_least(tag))
            data, _ = yield Load("x")
        return int(data)


def _published(tag: int, *, exact: bool = True) -> Until:
    if exact:
        return Until(f"has number {tag}", lambda word: word[1] == tag)
    return Until(f"has number {tag} or more", lambda word: word[1] >= tag)
