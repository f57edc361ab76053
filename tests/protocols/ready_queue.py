"""A queue of items that are ready: a ring that many fill and many empty, as in the one launch.

Every item has a count of the items that it still waits for. Who finishes one posts its semaphore, and counts down at
each of its consumers; who counts the last puts that consumer into the queue. A worker draws a place in the queue and
waits until it is filled. Every item is put in once, so a ring of as many places as there are items cannot overflow, and
as many draws as there are items end a worker. What an item reads may be ordered by either:

    semaphores    post releases, and who takes an item still polls, once, with acquire; the queue itself is relaxed
    the queue     counts acquire and release, for whoever is last hands on what all before it stored; what is put
                  releases, and what is taken acquires; nobody looks at a semaphore
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from interlace.core.errors import QueueOverflowError

from .check import Model
from .operations import (
    ACQUIRE,
    RELAXED,
    RELEASE,
    Add,
    Await,
    Load,
    Operation,
    Order,
    Store,
    do,
    other_than,
)


class Looks(Enum):
    """When a worker learns whether its count was the last: with it, or by a load before or behind it."""

    BEFORE = "before"
    WITH = "with"
    BEHIND = "behind"


@dataclass(frozen=True)
class ReadyQueue:
    """Items and whom they wait for.

    Attributes:
        producers: of each item, the items that it waits for.
        capacity: places of the ring.
        post, wait: the orders of semaphores; no ``wait`` where nobody looks at them.
        put, take, count: those of the queue.
    """

    producers: tuple[tuple[int, ...], ...] = ((), (), (0, 1), (0,))
    workers: int = 3
    capacity: int = 4
    looks: Looks = Looks.WITH
    post: Order = RELEASE
    wait: Order | None = ACQUIRE
    put: Order = RELAXED
    take: Order = RELAXED
    count: Order = RELAXED

    def model(self) -> Model:
        ready = [item for item, waits in enumerate(self.producers) if not waits]
        words = {"head": 0, "tail": len(ready)}
        words |= {f"place {n}": item + 1 for n, item in enumerate(ready)}
        words |= {f"place {n}": 0 for n in range(len(ready), max(self.capacity, len(self.producers)))}
        words |= {f"left of {item}": len(waits) for item, waits in enumerate(self.producers)}
        words |= {f"{what} {item}": 0 for what in ("data", "semaphore") for item in range(len(self.producers))}
        return Model("ready queue", words, (self._worker,) * self.workers, len(self.producers))

    def _worker(self) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        place = yield Add("head", 1)
        if place >= len(self.producers):
            return None
        item = (yield Await(f"place {place}", other_than(0), self.take)) - 1
        yield from do(item, self.producers[item], self.wait)
        yield Add(f"semaphore {item}", 1, self.post)
        for consumer, waits in enumerate(self.producers):
            if item in waits and (yield from self._last(f"left of {consumer}")):
                at = yield Add("tail", 1)
                if at >= self.capacity:
                    raise QueueOverflowError(f"item {consumer} is put into a queue of {self.capacity} that is full")
                yield Store(f"place {at}", consumer + 1, self.put)
        return ()

    def _last(self, left: str) -> Generator[Operation, Any, bool]:
        """Count down; whether it was the last."""
        seen: int = (yield Load(left)) if self.looks is Looks.BEFORE else 0
        counted: int = yield Add(left, -1, self.count)
        if self.looks is Looks.BEHIND:
            seen = 1 + (yield Load(left, ACQUIRE))
        return (counted if self.looks is Looks.WITH else seen) == 1
