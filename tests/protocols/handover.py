"""Hand-off of a tile in the megakernel: many threads store, one posts; one polls, many read.

    block    worker    steps
    0        0, 1      store; synchronise; one arrives at the block's barrier    threads that compute, a warpgroup
    0        2         await that; post                                          the warp that posts
    1        3         store and post of another tile                            a block of one worker
    2        4, 5      poll, each a semaphore; synchronise; one arrives          lanes of the warp that waits
    2        6         await that; read both tiles                               threads that compute

Arrivals and waits of barriers have the scope of the block; only post and poll go to the GPU.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from interlace.core.errors import ArgumentError

from .check import Model
from .operations import (
    ACQUIRE,
    ACQUIRE_RELEASE,
    BLOCK,
    GPU,
    RELEASE,
    Add,
    Await,
    Done,
    Operation,
    Order,
    Process,
    Read,
    Scope,
    Write,
    at_least,
)

#: Steps of each role, in order. Workers omit the steps that a model omits.
Steps = tuple[str, ...]
Meanings = Mapping[str, tuple[Operation, ...]]


@dataclass(frozen=True)
class HandOff:
    """Steps of each role, with memory order and scope of its semaphore operations.

    Raises:
        ArgumentError: a role has an unknown step.
    """

    storing: Steps = ("store", "synchronise", "arrive")
    posting: Steps = ("await", "post")
    waiting: Steps = ("poll", "synchronise", "arrive")
    reading: Steps = ("await", "read")
    post: Order = RELEASE
    post_scope: Scope = GPU
    poll: Order = ACQUIRE
    poll_scope: Scope = GPU

    def model(self) -> Model:
        post = Add("semaphore 0", 1, self.post, self.post_scope)
        other = Add("semaphore 1", 1, self.post, self.post_scope)
        finished, stage = Add("finished", 1, RELEASE, BLOCK), Add("stage", 1, RELEASE, BLOCK)

        def storing(thread: int) -> Process:
            return self._role(
                self.storing,
                {
                    "store": (Write(f"tile 0, part {thread}", 7),),
                    "synchronise": _meet("warpgroup"),
                    "arrive": (finished,) if thread == 0 else (),
                },
            )

        def waiting(lane: int) -> Process:
            return self._role(
                self.waiting,
                {
                    "poll": (Await(f"semaphore {lane}", at_least(1), self.poll, self.poll_scope),),
                    "synchronise": _meet("warp"),
                    "arrive": (stage,) if lane == 0 else (),
                },
            )

        poster: Meanings = {"await": (Await("finished", at_least(1), ACQUIRE, BLOCK),), "post": (post,)}
        alone: Meanings = {"store": (Write("tile 1", 8),), "post": (other,)}
        parts = (Read("tile 0, part 0", 7), Read("tile 0, part 1", 7), Read("tile 1", 8), Done(0))
        reader: Meanings = {"await": (Await("stage", at_least(1), ACQUIRE, BLOCK),), "read": parts}
        words = (
            *("tile 0, part 0", "tile 0, part 1", "tile 1", "semaphore 0", "semaphore 1"),
            *("warpgroup", "finished", "warp", "stage"),
        )
        workers = (
            *(storing(0), storing(1), self._role(self.posting, poster), self._role(("store", "post"), alone)),
            *(waiting(0), waiting(1), self._role(self.reading, reader)),
        )
        return Model("hand-off", dict.fromkeys(words, 0), workers, 1, (0, 0, 0, 1, 2, 2, 2))

    @staticmethod
    def _role(steps: Steps, means: Meanings) -> Process:
        if unknown := set(steps) - set(means):
            raise ArgumentError(f"no step {sorted(unknown)[0]!r} here; use one of {', '.join(means)}")

        def process() -> Generator[Operation, Any, None]:
            for step in steps:
                for operation in means[step]:
                    _ = yield operation

        return process


def _meet(barrier: str) -> tuple[Operation, ...]:
    """Return the operations of a barrier of two workers of a block."""
    return Add(barrier, 1, ACQUIRE_RELEASE, BLOCK), Await(barrier, at_least(2), ACQUIRE, BLOCK)
