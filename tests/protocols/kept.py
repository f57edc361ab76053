"""LL words that the warps of a block poll for each other and cache, like tokens of a matmul in the megakernel.

Each warp polls some of the words (``tagged``), and copies them to shared memory by ordinary stores. After a barrier all
warps read all words. If the block's next item needs the same epoch, it reads the cached words and does not poll. If it
needs another epoch, it overwrites them, after the barrier at which the warps end the previous item. So a block has one
copy, and polls every word once.

Worked example, two warps, items that need the epochs 1, 1, 2:

    item 0      warp 0 finds (11, 1) in x 0, warp 1 (12, 1) in x 1; they store, barrier, read 11 and 12; barrier
    item 1      both read 11 and 12 again; barrier
    item 2      they poll for epoch 2, and overwrite 11 and 12, which no warp reads any more
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .check import Model
from .operations import (
    ACQUIRE,
    ACQUIRE_RELEASE,
    BLOCK,
    Add,
    Await,
    Done,
    Operation,
    Process,
    Read,
    Store,
    Until,
    Value,
    Write,
    at_least,
)

WARPS = 2


@dataclass(frozen=True)
class Kept:
    """A block of two warps with items that read what another block publishes.

    Attributes:
        items: epochs that the items need, from 1 and without a gap.
        meets: True for a barrier before warps read what others stored.
        leaves: True for a barrier at the end of an item.
        looks: True if a warp reuses cached words only if its item needs the previous item's epoch; else it always does.
    """

    items: tuple[int, ...] = (1, 1, 2)
    meets: bool = True
    leaves: bool = True
    looks: bool = True

    def model(self) -> Model:
        words: dict[str, Value] = {f"{name} {n}": (0, 0) for name in "xy" for n in range(WARPS)}
        words |= {f"kept {n}": 0 for n in range(WARPS)} | {"barrier": 0}
        warps = tuple(self._warp(n) for n in range(WARPS))
        return Model("kept words", words, (self._writer, *warps), WARPS * len(self.items), (0, 1, 1))

    def _writer(self, number: int = 1) -> Generator[Operation, Any, tuple[Any, ...] | None]:
        if number > max(self.items):
            return None
        for n in range(WARPS):
            if number > 1:
                yield Await(f"y {n}", _number(number - 1))
        for n in range(WARPS):
            yield Store(f"x {n}", (_data(number, n), number))
        return (number + 1,)

    def _warp(self, n: int) -> Process:
        def process(at: int = 0, met: int = 0) -> Generator[Operation, Any, tuple[Any, ...] | None]:
            if at == len(self.items):
                return None
            wanted = self.items[at]
            if not at or (self.looks and wanted != self.items[at - 1]):
                data, _ = yield Await(f"x {n}", _number(wanted))
                yield Write(f"kept {n}", data)
                if self.meets:
                    met += WARPS
                    yield Add("barrier", 1, ACQUIRE_RELEASE, BLOCK)
                    yield Await("barrier", at_least(met), ACQUIRE, BLOCK)
            for other in range(WARPS):
                yield Read(f"kept {other}", _data(wanted, other))
            yield Done(WARPS * at + n)
            yield Store(f"y {n}", (0, wanted))
            if self.leaves:
                met += WARPS
                yield Add("barrier", 1, ACQUIRE_RELEASE, BLOCK)
                yield Await("barrier", at_least(met), ACQUIRE, BLOCK)
            return (at + 1, met)

        return process


def _data(number: int, n: int) -> int:
    return number * 10 + n + 1


def _number(wanted: int) -> Until:
    return Until(f"has number {wanted}", lambda word: word[1] == wanted)
