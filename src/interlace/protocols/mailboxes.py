"""A dispatcher that knows all dependencies, and a mailbox of one word for each worker.

A mailbox is empty (0), holds an item, or the word to stop. The dispatcher stores into empty ones; a worker empties its
own when it is done with the item, which tells the dispatcher so. What an item reads its worker has by way of the
dispatcher, which acquired it with the emptied mailbox and releases it with the next item.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from interlace.protocols.check import Model
from interlace.protocols.operations import (
    ACQUIRE,
    RELEASE,
    Await,
    Done,
    Ended,
    Load,
    Operation,
    Order,
    Process,
    Read,
    Store,
    Write,
    other_than,
)

_STOP = -1


@dataclass(frozen=True)
class Mailboxes:
    """Items and whom they wait for.

    Attributes:
        producers: of each item, the items that it waits for.
        looks: the dispatcher waits until a mailbox is empty before it fills it again.
        awaits_end: it stops the workers when all items are done, not when all are given out.
    """

    producers: tuple[tuple[int, ...], ...] = ((), (), (0, 1), (2,))
    workers: int = 2
    looks: bool = True
    awaits_end: bool = True
    put: Order = RELEASE
    take: Order = ACQUIRE
    empty: Order = RELEASE
    see: Order = ACQUIRE

    def model(self) -> Model:
        words = {f"mailbox {n}": 0 for n in range(self.workers)}
        words |= {f"data {item}": 0 for item in range(len(self.producers))}
        workers = (self._dispatcher, *(self._worker(n) for n in range(self.workers)))
        return Model("mailboxes", words, workers, len(self.producers))

    def _dispatcher(
        self, done: tuple[int, ...] = (), given: tuple[tuple[int, int], ...] = (), at: int = 0
    ) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        """``given``: worker and item, of items that are not known to be done; ``at``: the mailbox to look at."""
        box = f"mailbox {at}"
        mine = [item for worker, item in given if worker == at]
        if mine and (yield Load(box, self.see)) == 0:
            done = tuple(sorted((*done, *mine)))
            given = tuple((worker, item) for worker, item in given if worker != at)
            mine = []
        away = {item for _, item in given}
        if len(done) + (0 if self.awaits_end else len(away)) == len(self.producers):
            yield Ended()
            for n in range(self.workers):
                yield Store(f"mailbox {n}", _STOP, self.put)
            return None
        if not mine or not self.looks:
            for item, waits in enumerate(self.producers):
                if item not in done and item not in away and set(waits) <= set(done):
                    yield Store(box, item + 1, self.put)
                    given = tuple(sorted((*given, (at, item))))
                    break
        return done, given, (at + 1) % self.workers

    def _worker(self, n: int) -> Process:
        def process() -> Generator[Operation, Any, tuple[Any, ...] | None]:
            found = yield Await(f"mailbox {n}", other_than(0), self.take)
            if found == _STOP:
                return None
            item = found - 1
            yield Done(item)
            for producer in self.producers[item]:
                yield Read(f"data {producer}", 1)
            yield Write(f"data {item}", 1)
            yield Store(f"mailbox {n}", 0, self.empty)
            return ()

        return process
