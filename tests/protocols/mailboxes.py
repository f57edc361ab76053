"""A dispatcher that knows all dependencies, and mailboxes of each worker, which the worker reads in turn.

A mailbox is a word: empty (0), an item, or the stop word. The dispatcher fills empty mailboxes. A worker empties its
mailbox when it has finished the item, which notifies the dispatcher. An item's inputs become visible to its worker
through the dispatcher, which acquired them with the emptied mailbox and releases them with the next item; or, if
mailboxes are relaxed, through the item's own waits.

In the megakernel (``ONE_LAUNCH``) a worker is a block of two: one takes items, up to two ahead of the other, and sends
them by messages. The other runs them, and empties a mailbox when the first one may already look at it again. So a word
also has the turn in which it was filled:

    mailboxes of a block    filled with items 0, 2, 5 in turn       the block's third look
    (0, item 0)  empty      then (0, item 2), then (1, item 5)      at the first again, for turn 1: not for (0, item 0)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .check import Model
from .operations import (
    ACQUIRE,
    BLOCK,
    RELAXED,
    RELEASE,
    Add,
    Await,
    Ended,
    Load,
    Operation,
    Order,
    Process,
    Store,
    Until,
    Value,
    at_least,
    do,
    other_than,
)

_STOP = -1


@dataclass(frozen=True)
class Mailboxes:
    """Items with their dependencies, and the variants of the protocol.

    Attributes:
        producers: items that each item waits for.
        workers: number of workers.
        boxes: number of mailboxes per worker.
        ahead: True if a worker is a block of two, one of which takes items before the other has finished.
        turns: True if a word has the turn in which it was filled.
        looks: True if the dispatcher waits until a mailbox is empty before it fills it again.
        uses: True if the dispatcher stops the workers when all items are done, and uses their results. Otherwise it
            stops each worker with an empty mailbox once all items are sent.
        awaits_end: with ``uses``, True if it waits until all items are done, not only sent.
        post, wait: memory orders of semaphores that items wait for themselves; None if there are none.
    """

    producers: tuple[tuple[int, ...], ...] = ((), (), (0, 1), (2,))
    workers: int = 2
    boxes: int = 1
    ahead: bool = False
    turns: bool = False
    looks: bool = True
    uses: bool = True
    awaits_end: bool = True
    put: Order = RELEASE
    take: Order = ACQUIRE
    empty: Order = RELEASE
    see: Order = ACQUIRE
    post: Order | None = None
    wait: Order | None = None

    def model(self) -> Model:
        words: dict[str, Value] = {f"mailbox {n} of {w}": 0 for w in range(self.workers) for n in range(self.boxes)}
        words |= {f"{what} {item}": 0 for what in ("data", "semaphore") for item in range(len(self.producers))}
        blocks = range(1, self.workers + 1)
        if not self.ahead:
            return self._model(words, [self._worker(w) for w in range(self.workers)], blocks)
        words |= {f"finished {w}": 0 for w in range(self.workers)}
        words |= {f"message {n} of {w}": 0 for w in range(self.workers) for n in range(len(self.producers) + 1)}
        pairs = [role for w in range(self.workers) for role in (self._takes(w), self._does(w))]
        return self._model(words, pairs, [block for block in blocks for _ in range(2)])

    def _model(self, words: dict[str, Value], workers: list[Process], blocks: Any) -> Model:
        return Model("mailboxes", words, (self._dispatcher, *workers), len(self.producers), (0, *blocks))

    def _box(self, worker: int, n: int) -> str:
        return f"mailbox {n % self.boxes} of {worker}"

    def _mail(self, n: int, item: int) -> Value:
        return (n // self.boxes % 2 if self.turns else 0, item)

    def _expect_filled(self, n: int) -> Until:
        """Return the condition that a mailbox of a worker is filled for the n-th time."""
        if not self.turns:
            return other_than(0)
        turn = n // self.boxes % 2
        return Until(f"of turn {turn}", lambda value: value != 0 and value[0] == turn)

    def _dispatcher(
        self,
        done: tuple[int, ...] = (),
        given: tuple[tuple[int, int], ...] = (),
        counts: tuple[int, ...] = (),
        stopped: tuple[int, ...] = (),
        at: int = 0,
    ) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        """Serve one worker after another.

        Args:
            done: items that are known to be done.
            given: (worker, item) of sent items that are not known to be done, in the order of sending.
            counts: number of times that mailboxes of each worker were filled, modulo the period.
            stopped: workers that were sent the stop word.
            at: worker to serve.
        """
        counts = counts or (0,) * self.workers
        mine = [item for worker, item in given if worker == at]
        if mine and (yield Load(self._box(at, counts[at] - len(mine)), self.see)) == 0:
            done = tuple(sorted((*done, mine[0])))
            given = tuple(pair for pair in given if pair != (at, mine[0]))
            mine = mine[1:]
        away = {item for _, item in given}
        if self.uses and len(done) + (0 if self.awaits_end else len(away)) == len(self.producers):
            yield Ended()
            for w in range(self.workers):
                yield Store(self._box(w, counts[w]), self._mail(counts[w], _STOP), self.put)
            return None
        if at not in stopped and (len(mine) < self.boxes or not self.looks):
            open_items = [item for item in range(len(self.producers)) if item not in done and item not in away]
            ready = [item for item in open_items if set(self.producers[item]) <= set(done)]
            if ready:
                given = (*given, (at, ready[0]))
                yield Store(self._box(at, counts[at]), self._mail(counts[at], ready[0]), self.put)
            elif not open_items and not self.uses:
                stopped = tuple(sorted((*stopped, at)))
                yield Store(self._box(at, counts[at]), self._mail(counts[at], _STOP), self.put)
            if ready or at in stopped:
                counts = (*counts[:at], counts[at] + 1, *counts[at + 1 :])
        if len(stopped) == self.workers:
            return None
        return done, given, tuple(count % self._period for count in counts), stopped, (at + 1) % self.workers

    @property
    def _period(self) -> int:
        """Period of mailboxes and turns; more than a worker holds, so that differences are unambiguous."""
        return 2 * self.boxes

    def _worker(self, w: int) -> Process:
        def process(n: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            found = yield Await(self._box(w, n), self._expect_filled(n), self.take)
            if found[1] == _STOP:
                return None
            yield from do(found[1], self.producers[found[1]], self.wait)
            yield Store(self._box(w, n), 0, self.empty)
            return ((n + 1) % (self._period if self.turns else self.boxes),)

        return process

    def _takes(self, w: int) -> Process:
        def process(n: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if n >= self.boxes:
                yield Await(f"finished {w}", at_least(n - self.boxes + 1), ACQUIRE, BLOCK)
            found = yield Await(self._box(w, n), self._expect_filled(n), self.take)
            yield Store(f"message {n} of {w}", found[1] + 1 if found[1] != _STOP else _STOP, RELEASE, BLOCK)
            return (n + 1,) if found[1] != _STOP else None

        return process

    def _does(self, w: int) -> Process:
        def process(n: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            message = yield Await(f"message {n} of {w}", other_than(0), ACQUIRE, BLOCK)
            if message == _STOP:
                return None
            item = message - 1
            yield from do(item, self.producers[item], self.wait)
            yield Add(f"finished {w}", 1, RELEASE, BLOCK)
            if self.post is not None:
                yield Add(f"semaphore {item}", 1, self.post)
            yield Store(self._box(w, n), 0, self.empty)
            return (n + 1,)

        return process


#: Mailboxes of ``csrc/dispatch/dispatcher.cuh``.
ONE_LAUNCH = Mailboxes(
    *(((), (), (0, 1)), 2, 2),
    ahead=True,
    turns=True,
    uses=False,
    put=RELAXED,
    take=RELAXED,
    empty=RELAXED,
    see=RELAXED,
    post=RELEASE,
    wait=ACQUIRE,
)
