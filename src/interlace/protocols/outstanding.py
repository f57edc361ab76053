"""Items that make more items, and the end of it all: a count of those that are outstanding.

An item that makes others counts them first, then puts them into the queue; when it is done it counts itself off, last
of all. So the count is 0 only once nothing is left to do and nobody can make more, and it never rises again. A worker
draws a place in the queue and polls it and the count in turn.

    make    add their number (relaxed); put each (add 1 to tail, store with release)
    done    add -1 (release); a chain of adds releases for all who counted
    end     load the count (acquire): where it is 0, everything is done and seen
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from interlace.core.errors import QueueOverflowError
from interlace.protocols.check import Model
from interlace.protocols.operations import (
    ACQUIRE,
    RELEASE,
    Add,
    Done,
    Ended,
    Load,
    Operation,
    Order,
    Read,
    Store,
    Write,
)


@dataclass(frozen=True)
class Outstanding:
    """Items and the items that they make; item 0 is there at the start.

    Attributes:
        makes: of each item, the items that it makes.
        capacity: places of the queue.
        counts_first: items are counted before they are put into the queue, not behind that.
        off_last: an item counts itself off when it is done, not when it is taken.
    """

    makes: tuple[tuple[int, ...], ...] = ((1, 2), (3,), (), ())
    workers: int = 2
    capacity: int = 4
    counts_first: bool = True
    off_last: bool = True
    put: Order = RELEASE
    take: Order = ACQUIRE
    off: Order = RELEASE
    end: Order = ACQUIRE

    def model(self) -> Model:
        words = {"outstanding": 1, "head": 0, "tail": 1}
        words |= {f"place {n}": int(n == 0) for n in range(self.capacity)}
        words |= {f"data {item}": 0 for item in range(len(self.makes))}
        return Model("outstanding", words, (self._worker,) * self.workers, len(self.makes))

    def _worker(self, place: int | None = None) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        """``place``: drawn, but empty when last seen."""
        if place is None:
            place = yield Add("head", 1)
        item = ((yield Load(f"place {place}", self.take)) if place < self.capacity else 0) - 1
        if item >= 0:
            yield from self._do(item)
            return (None,)
        if (yield Load("outstanding", self.end)) == 0:
            yield Ended()
            return None
        return (place,)

    def _do(self, item: int) -> Generator[Operation, Any, None]:
        makers = [maker for maker, made in enumerate(self.makes) if item in made]
        more = self.makes[item]
        if not self.off_last:
            yield Add("outstanding", -1, self.off)
        yield Done(item)
        for maker in makers:
            yield Read(f"data {maker}", 1)
        yield Write(f"data {item}", 1)
        if more and self.counts_first:
            yield Add("outstanding", len(more))
        for made in more:
            at = yield Add("tail", 1)
            if at >= self.capacity:
                raise QueueOverflowError(f"item {made} is put into a queue of {self.capacity} that is full")
            yield Store(f"place {at}", made + 1, self.put)
        if more and not self.counts_first:
            yield Add("outstanding", len(more))
        if self.off_last:
            yield Add("outstanding", -1, self.off)
