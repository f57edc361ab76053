"""Words that are emptied: data that are their own semaphore, like split-K partials in the megakernel.

A word is empty or holds a value. One worker stores the value; another polls the word until it is not empty, and then
empties it, all in relaxed order. A vector is several words, each stored and found separately. After it has emptied the
words the reader posts. The writer of the next value, and its reader, have waited for the post. No fence is needed
between a value and its reader: the word contains everything that the reader needs.

Worked example, the same word in two rounds:

    writer of round 1    stores 10 in x
    reader of round 1    finds x empty, then 10; stores that x is empty; posts
    writer of round 2    waits for that post; stores 20 in x
    reader of round 2    waits for that post, so it cannot find 10; finds x empty, then 20
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .check import Model
from .errors import StaleReadError
from .operations import (
    ACQUIRE,
    RELEASE,
    Add,
    Await,
    Done,
    Load,
    Operation,
    Order,
    Process,
    Store,
    at_least,
    other_than,
)

_EMPTY = 0


@dataclass(frozen=True)
class Emptied:
    """Rounds of the same words.

    Attributes:
        rounds: writer and reader of each round.
        words: number of words of a vector.
        polled: number of words that the reader polls; it reads the others once.
        emptied: number of words that the reader empties.
        writer_waits, reader_waits: True if it waits for the post of the previous round.
    """

    rounds: tuple[tuple[int, int], ...] = ((0, 1), (0, 2), (1, 2))
    words: int = 2
    polled: int = 2
    emptied: int = 2
    writer_waits: bool = True
    reader_waits: bool = True
    post: Order = RELEASE
    wait: Order = ACQUIRE

    def model(self) -> Model:
        words = dict.fromkeys((*(f"x {n}" for n in range(self.words)), "posts"), _EMPTY)
        workers = range(max(map(max, self.rounds)) + 1)
        return Model("emptied words", words, tuple(map(self._worker, workers)), len(self.rounds))

    def _worker(self, worker: int) -> Process:
        turns = [(n, role) for n, roles in enumerate(self.rounds) for role in (0, 1) if roles[role] == worker]

        def process(at: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if at == len(turns):
                return None
            number, role = turns[at]
            yield from (self._write, self._read)[role](number)
            return (at + 1,)

        return process

    def _write(self, number: int) -> Generator[Operation, Any, None]:
        if self.writer_waits and number:
            yield Await("posts", at_least(number), self.wait)
        for n in range(self.words):
            yield Store(f"x {n}", _value(number))

    def _read(self, number: int) -> Generator[Operation, Any, None]:
        if self.reader_waits and number:
            yield Await("posts", at_least(number), self.wait)
        for n in range(self.words):
            found = yield Await(f"x {n}", other_than(_EMPTY)) if n < self.polled else Load(f"x {n}")
            if found != _value(number):
                raise StaleReadError(f"x {n} of round {number} is read as {found}, and should be {_value(number)}")
        for n in range(self.emptied):
            yield Store(f"x {n}", _EMPTY)
        yield Done(number)
        yield Add("posts", 1, self.post)


def _value(number: int) -> int:
    return 10 * (number + 1)
