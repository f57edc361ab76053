"""A dispatcher that knows all dependencies, and mailboxes for each worker, which it takes from in turn.

A mailbox is a word: empty (0), or with an item or the word to stop. The dispatcher stores into empty ones; a worker
empties its own when it is done with the item, which tells the dispatcher so. What an item reads its worker has by way
of the dispatcher, which acquired it with the emptied mailbox and releases it with the next item; or, where mailboxes
are relaxed, by its own waits.

In the one launch (``ONE_LAUNCH``) a worker is a block of two: one takes items, up to two ahead of the other, and tells
it by messages; the other does them, and empties mailboxes after that one may look again. So a word also says in which
turn it was filled:

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
    """Items and whom they wait for.

    Attributes:
        producers: of each item, the items that it waits for.
        workers: how many.
        boxes: of each.
        ahead: a worker is a block of two, of which one takes items before the other is done.
        turns: a word says in which turn it was filled.
        looks: the dispatcher waits until a mailbox is empty before it fills it again.
        uses: the dispatcher stops the workers when all items are done, and uses what they left; else it stops each that
            has room when all items are given out.
        awaits_end: where it uses that, it does not when all are given out.
        post, wait: by which an item's own waits are met; None if it has none.
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

    def _filled(self, n: int) -> Until:
        """For the n-th time a mailbox of a worker."""
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
        """Looks at one worker after another.

        Args:
            given: worker and item, of items that are not known to be done, in the order in which they were given.
            counts: how often it filled mailboxes of each worker, as far as that matters.
            stopped: workers that it told to stop.
            at: the worker to look at.
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
        """Behind which mailboxes and turns come again; more than a worker holds, so that differences are right."""
        return 2 * self.boxes

    def _worker(self, w: int) -> Process:
        def process(n: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            found = yield Await(self._box(w, n), self._filled(n), self.take)
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
            found = yield Await(self._box(w, n), self._filled(n), self.take)
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


#: As ``csrc/dispatch/dispatcher.cuh`` has them.
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
