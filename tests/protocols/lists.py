"""Work stealing between per-block queues (``lists`` in the code), as in ``csrc/dispatch``.

A block is two workers. One takes items, up to two ahead of the other, and sends them by messages. The other runs them
in that order, each after the items that it waits for. A word per queue has the range of remaining positions; items are
taken from its front by compare-and-swap. A block with an empty queue finishes the items that it holds before it steals,
unless these wait for nothing: then they end, whatever follows them. It may steal several items, up to half of a queue;
all but the first become its own queue.

Worked example, queues (2), (0, 1) and () of three blocks; item 1 waits for 0, and 2 for 1. Block 0 holds 2, block 1
holds 0. If block 0 stole 1 while it holds 2, it would wait for 1 before it runs 1. So it steals nothing, and block 1 or
2 takes 1.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .check import Model
from .operations import (
    ACQUIRE,
    BLOCK,
    RELEASE,
    Add,
    Await,
    Load,
    Operation,
    Order,
    Process,
    Store,
    Swap,
    Value,
    at_least,
    do,
    other_than,
)

#: Maximum number of items that a block holds: one that runs and one that is taken ahead.
HELD = 2
_NONE = -1


@dataclass(frozen=True)
class Lists:
    """Queues of items; each item waits for the item with the preceding number.

    Attributes:
        lists: queue of each block.
        checks: True if a block takes an item only if its compare-and-swap succeeded.
        settles: True if a block finishes the items that it holds before it steals.
        frees: True to except held items that wait for nothing.
        most: maximum number of items that it steals at a time.
        keeps: True if it puts only the stolen items after the first into its own queue; False to put the first, too.
    """

    lists: tuple[tuple[int, ...], ...] = ((2,), (0, 1), ())
    checks: bool = True
    settles: bool = True
    frees: bool = True
    most: int = 1
    keeps: bool = True
    post: Order = RELEASE
    wait: Order = ACQUIRE

    def model(self) -> Model:
        blocks = range(len(self.lists))
        items = sum(map(len, self.lists))
        ends = list(accumulate(map(len, self.lists)))
        words: dict[str, Value] = {f"finished {block}": 0 for block in blocks}
        words |= {f"list {block}": (ends[block] - len(self.lists[block]), ends[block]) for block in blocks}
        words |= {f"message {n} of {block}": 0 for block in blocks for n in range(items + 1)}
        words |= {f"{what} {item}": 0 for what in ("data", "semaphore") for item in range(items)}
        workers = [worker for block in blocks for worker in (self._takes(block), self._does(block))]
        return Model("lists", words, tuple(workers), items, tuple(block for block in blocks for _ in range(2)))

    def _takes(self, block: int) -> Process:
        def process(
            sent: int = 0, near: int = 0, held: int = _NONE
        ) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if near == len(self.lists):
                yield Store(f"message {sent} of {block}", _NONE, RELEASE, BLOCK)
                return None
            victim = (block + near) % len(self.lists)
            some = 0 if near and self.settles and not (self.frees and held == 0) else HELD - 1
            if sent > some:
                yield Await(f"finished {block}", at_least(sent - some), ACQUIRE, BLOCK)
            place, end = yield from self._take(f"list {victim}", self.most if near else 1)
            if place == end:
                return sent, near + 1, held
            if end - place > 1:
                yield Store(f"list {block}", (place + 1 if self.keeps else place, end))
                near = 0
            yield Store(f"message {sent} of {block}", items[place] + 1, RELEASE, BLOCK)
            return sent + 1, near, items[place]

        items = [item for some in self.lists for item in some]
        return process

    def _take(self, word: str, most: int) -> Generator[Operation, Any, tuple[int, int]]:
        """Take positions from the front of a queue; none if it is empty."""
        first, end = left = yield Load(word)
        while first < end:
            some = min((end - first + 1) // 2, most)
            found = yield Swap(word, left, (first + some, end))
            if found == left or not self.checks:
                return first, first + some
            first, end = left = found
        return first, first

    def _does(self, block: int) -> Process:
        def process(n: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            message = yield Await(f"message {n} of {block}", other_than(0), ACQUIRE, BLOCK)
            if message == _NONE:
                return None
            item = message - 1
            yield from do(item, (item - 1,) if item else (), self.wait)
            yield Add(f"semaphore {item}", 1, self.post)
            yield Add(f"finished {block}", 1, RELEASE, BLOCK)
            return (n + 1,)

        return process
