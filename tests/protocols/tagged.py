"""The LL protocol (NCCL's LL, nccl/src/device/prims_ll.h), as in the megakernel: data with an inline epoch.

An LL word holds data and the epoch (number) of their publication, stored and loaded as one, in relaxed order. A reader
polls the word itself until it has the expected epoch; a counter, also relaxed, only indicates when polling may succeed.
The next publication overwrites the word. No fence orders that store after the reads of the last publication: its writer
has inputs that every reader of the last publication computed from what it read, also in LL words.

The warp that polls may differ from the warp that computes. A loader copies what it found to a slot of shared memory and
arrives (release, block scope) at the slot's barrier. The other side waits for it (acquire), computes, and hands the
slot back in the same way.

Worked example, one writer, two readers, publication 2:

    reader 0    finds (20, 2) in x; stores (20, 2) in y 0
    reader 1    finds (20, 2) in x; stores (20, 2) in y 1
    writer      finds epoch 2 in y 0 and y 1; stores (30, 3) in x: both have read it
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
        reads: publications that each reader reads, numbered from 1.
        tags: number of epochs before they repeat; None if they never do.
        awaits: readers whose words the writer has as inputs; those of the publication before all of theirs.
        whole: True if data and epoch are stored and loaded as one.
        polls: True if a reader polls the word; False if it only waits for the counter.
        exact: True if a reader expects its epoch; False if it also accepts a later one.
        loaders: True if each reader has a worker that polls for it and passes the data on in a slot of their block.
        arrive, wait: memory orders of arriving at a barrier of the slot, and of waiting for it.
        hands_back: True if a loader waits until the slot has been handed back before it fills it again.
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
                yield Await(f"y {reader}", _expect_published(number - 1))
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
            data, _ = yield Await("x", _expect_published(tag, exact=self.exact))
        else:
            yield Await("number of x", at_least(tag))
            data, _ = yield Load("x")
        return int(data)


def _expect_published(tag: int, *, exact: bool = True) -> Until:
    if exact:
        return Until(f"has number {tag}", lambda word: word[1] == tag)
    return Until(f"has number {tag} or more", lambda word: word[1] >= tag)
