"""The ready queue: a multi-producer multi-consumer ring of ready items, as in the megakernel.

Every item has a count of the items that it still waits for. A worker that finishes an item posts its semaphore and
decrements the count of each consumer; the last decrement enqueues the consumer. A worker claims a slot of the queue and
waits until it is filled. Every item is enqueued once. So a ring with as many slots as items cannot overflow, and a
worker ends when it claims a slot beyond the number of items. Either of these may order an item's reads:

    semaphores    posts release, and the worker that takes an item polls once with acquire; the queue is relaxed
    the queue     decrements acquire and release, because the last one passes on what all others stored; enqueuing
                  releases and dequeuing acquires; semaphores are not read
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
    """How a worker detects the last decrement: by its result, or by a load before or after it."""

    BEFORE = "before"
    WITH = "with"
    BEHIND = "behind"


@dataclass(frozen=True)
class ReadyQueue:
    """Items with their dependencies, and the variants of the protocol.

    Attributes:
        producers: items that each item waits for.
        workers: number of workers.
        capacity: number of slots of the ring.
        looks: how a worker detects the last decrement.
        post, wait: memory orders of semaphores; ``wait`` is None if they are not read.
        put, take, count: memory orders of enqueuing, dequeuing and decrements.
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
            if item in waits and (yield from self._decrement(f"left of {consumer}")):
                at = yield Add("tail", 1)
                if at >= self.capacity:
                    raise QueueOverflowError(f"item {consumer} is put into a queue of {self.capacity} that is full")
                yield Store(f"place {at}", consumer + 1, self.put)
        return ()

    def _decrement(self, left: str) -> Generator[Operation, Any, bool]:
        """Decrement a count; return whether it was the last decrement."""
        seen: int = (yield Load(left)) if self.looks is Looks.BEFORE else 0
        counted: int = yield Add(left, -1, self.count)
        if self.looks is Looks.BEHIND:
            seen = 1 + (yield Load(left, ACQUIRE))
        return (counted if self.looks is Looks.WITH else seen) == 1
