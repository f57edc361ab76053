"""LL words that the warps of a block poll for each other, and keep, as tokens of a product in the one launch.

Each warp polls some of the words (``tagged``), stores what it found into shared memory by ordinary stores, and meets
the others; behind the barrier all read all of it. The block's next item, if it wants the same publication, finds it
there, and polls nothing. Whoever wants another one stores over it, behind the barrier at which the warps leave the item
before. So a block has one copy, and every word is asked for once.

Worked example, two warps, items that want the publications 1, 1, 2:

    item 0      warp 0 finds (11, 1) in x 0, warp 1 (12, 1) in x 1; they store, meet, and read 11 and 12; they meet
    item 1      both read 11 and 12 again; they meet
    item 2      they poll for number 2, and store over 11 and 12: nobody reads these any more
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
    """A block of two warps that takes items of what another block publishes.

    Attributes:
        items: the publications that they want, from 1 and without a gap.
        meets: warps meet before they read what others stored.
        leaves: they meet at the end of an item.
        looks: a warp keeps what is there only if its item wants the publication of the one before; else always.
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
