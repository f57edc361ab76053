"""Lists of items from which others take when their own are empty: dispatch by stealing, as in ``csrc/dispatch``.

A block is two workers. One takes items, up to two ahead of the other, and tells it by messages; the other does them in
the order in which they were taken, each behind the items that it waits for. Of each list a word has the places that are
left, and items are taken from its front by a compare-and-swap. A block whose list is empty finishes what it holds
before it takes from another's, unless that waits for nothing: so it ends, whatever stands behind it. It may take
several, up to half, and all but the first are its list then.

Worked example, lists (2), (0, 1) and () of three blocks; item 1 waits for 0, and 2 for 1. Block 0 holds 2, block 1
holds 0. If block 0 took 1 behind 2, it would wait in front of 1 for 1; so it takes nothing, and block 1 or 2 takes 1.
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

#: Items that a block holds at most: one that is done and one that is taken ahead.
HELD = 2
_NONE = -1


@dataclass(frozen=True)
class Lists:
    """Lists of items, which wait for the item of the number before theirs.

    Attributes:
        lists: of each block.
        checks: a block takes an item only if its compare-and-swap took place.
        settles: a block finishes what it holds before it takes from another's list.
        frees: but not what waits for nothing.
        most: items that it takes there at a time.
        keeps: it puts those but the first into its own list, and not that one, too.
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
        """Places from the front of a list; none if it is empty."""
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
