"""Items that make more items, and the end of it all, as under spawn dispatch of the one launch.

An item that makes others counts them first, then puts them into the queue; when it is done it counts itself off, last
of all. So the count is 0 only once nothing is left to do and nobody can make more, and it never rises again. A worker
draws a place in the queue and polls it and the count in turn.

    make    add their number (relaxed); put each (add 1 to tail, store with release)
    done    add -1 (release); a chain of adds releases for all who counted
    end     load the count (acquire): where it is 0, everything is done and seen

Two others ways to the end:

    done items    who counts the last off (acquire and release) puts an item for each worker that says so, and a worker
                  polls its place alone
    votes         no count. A worker that finds nothing in its place, which lies behind all that came, votes with how
                  many came (release), and looks at all votes (acquire): where they are equal, nobody holds an item. For
                  who held one of those that came, and put another, would have voted with more
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

#: What stands in a place instead of an item and one more: there are no items any more.
_DONE = -1


class Ends(Enum):
    """How a worker learns of the end."""

    COUNT = "count"
    DONE_ITEMS = "done items"
    VOTES = "votes"


@dataclass(frozen=True)
class Outstanding:
    """Items and the items that they make; item 0 is there at the start.

    Attributes:
        makes: of each item, the items that it makes.
        capacity: places of the queue, beside those of done items.
        ends: how workers learn of the end.
        counts_first: items are counted before they are put into the queue, not behind that.
        off_last: an item counts itself off when it is done, not when it is taken.
        behind: a worker votes only if its place lies behind all that came.
        off: of the count or, if there is none, of a vote; ``end``: of the loads that see the end.
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
        """``place``: drawn, but empty when last seen; ``voted``: with how many items, 0 for not yet."""
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
        """With how many items the worker has voted, and whether all have."""
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
        """An item is done."""
        if self.ends is Ends.VOTES:
            return
        before = yield Add("outstanding", -1, self.off)
        if self.ends is Ends.DONE_ITEMS and before == 1:
            at = yield Add("tail", self.workers)
            for n in range(self.workers):
                yield Store(f"place {at + n}", _DONE, self.put)
