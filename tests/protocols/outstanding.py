"""Termination detection for items that spawn items, as under spawn dispatch of the megakernel.

An item that spawns others first adds their number to a count, then enqueues them; as its last action it subtracts
itself. So the count is 0 only when no work is left and no worker can spawn more, and it never rises again. A worker
claims a slot of the queue, and polls the slot and the count in turn.

    spawn   add their number (relaxed); enqueue each (add 1 to tail, store with release)
    done    add -1 (release); a chain of adds releases for all workers that counted
    end     load the count (acquire): if it is 0, everything is done and visible

Two other protocols:

    done items    the worker that counts the last item off (acquire and release) enqueues a stop item for each worker,
                  and workers poll only their slots
    votes         no count. A worker with an empty slot after all enqueued items votes with the number of enqueued items
                  (release), and reads all votes (acquire). If they are equal, no worker holds an item: a worker that
                  held one of those items and enqueued another would have voted with a larger number
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from interlace.core.errors import QueueOverflowError

from .check import Model
from .operations import (
    ACQUIRE,
    RELEASE,
    Add,
    Ended,
    Load,
    Operation,
    Order,
    Store,
    do,
)

#: Stop item: value of a slot in place of an item's number plus one.
_DONE = -1


class Ends(Enum):
    """How a worker detects the end."""

    COUNT = "count"
    DONE_ITEMS = "done items"
    VOTES = "votes"


@dataclass(frozen=True)
class Outstanding:
    """Items with the items that they spawn, and the variants of the protocol; item 0 is enqueued at the start.

    Attributes:
        makes: items that each item spawns.
        workers: number of workers.
        capacity: number of slots of the queue, without those for stop items.
        ends: how workers detect the end.
        counts_first: True if items are counted before they are enqueued, False if after.
        off_last: True if an item counts itself off when it is done, False if when it is taken.
        behind: True if a worker votes only if its slot is after all enqueued items.
        put, take: memory orders of storing to a slot and of loading from it.
        off: memory order of counting off or, without a count, of a vote.
        end: memory order of the loads that detect the end.
    """

    makes: tuple[tuple[int, ...], ...] = ((1, 2), (3,), (), ())
    workers: int = 2
    capacity: int = 4
    ends: Ends = Ends.COUNT
    counts_first: bool = True
    off_last: bool = True
    behind: bool = True
    put: Order = RELEASE
    take: Order = ACQUIRE
    off: Order = RELEASE
    end: Order = ACQUIRE

    def model(self) -> Model:
        words = {"head": 0, "tail": 1}
        if self.ends is Ends.VOTES:
            words |= {f"vote {worker}": 0 for worker in range(self.workers)}
        else:
            words["outstanding"] = 1
        more = self.workers if self.ends is Ends.DONE_ITEMS else 0
        words |= {f"place {n}": int(n == 0) for n in range(self.capacity + more)}
        words |= {f"data {item}": 0 for item in range(len(self.makes))}
        workers = tuple(partial(self._worker, worker) for worker in range(self.workers))
        return Model("outstanding", words, workers, len(self.makes))

    def _worker(
        self, worker: int, place: int | None = None, voted: int = 0
    ) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        """Run a worker.

        Args:
            place: claimed slot, which was empty when last seen; None if none is claimed.
            voted: number of items that it has voted with, 0 if it has not.
        """
        if place is None:
            place = yield Add("head", 1)
        places = self.capacity + (self.workers if self.ends is Ends.DONE_ITEMS else 0)
        found = (yield Load(f"place {place}", self.take)) if place < places else 0
        if found > 0:
            yield from self._do(found - 1)
            return (None, voted)
        if found == _DONE:
            yield Ended()
            return None
        if self.ends is Ends.COUNT and (yield Load("outstanding", self.end)) == 0:
            yield Ended()
            return None
        if self.ends is Ends.VOTES:
            voted, unanimous = yield from self._vote(worker, place, voted)
            if unanimous:
                yield Ended()
                return None
        return (place, voted)

    def _vote(self, worker: int, place: int, voted: int) -> Generator[Operation, Any, tuple[int, bool]]:
        """Vote; return the number of items that the worker has voted with, and whether all votes are equal."""
        came = yield Load("tail")
        if self.behind and place < came:
            return voted, False
        if came != voted:
            yield Store(f"vote {worker}", came, self.off)
        for other in range(self.workers):
            if other != worker and (yield Load(f"vote {other}", self.end)) != came:
                return came, False
        return came, True

    def _do(self, item: int) -> Generator[Operation, Any, None]:
        makers = [maker for maker, made in enumerate(self.makes) if item in made]
        more = self.makes[item]
        counts = self.ends is not Ends.VOTES
        if not self.off_last:
            yield from self._off()
        yield from do(item, makers)
        if more and counts and self.counts_first:
            yield Add("outstanding", len(more))
        for made in more:
            at = yield Add("tail", 1)
            if at >= self.capacity:
                raise QueueOverflowError(f"item {made} is put into a queue of {self.capacity} that is full")
            yield Store(f"place {at}", made + 1, self.put)
        if more and counts and not self.counts_first:
            yield Add("outstanding", len(more))
        if self.off_last:
            yield from self._off()

    def _off(self) -> Generator[Operation, Any, None]:
        """Count off an item that is done."""
        if self.ends is Ends.VOTES:
            return
        before = yield Add("outstanding", -1, self.off)
        if self.ends is Ends.DONE_ITEMS and before == 1:
            at = yield Add("tail", self.workers)
            for n in range(self.workers):
                yield Store(f"place {at + n}", _DONE, self.put)
