"""What is drawn by a number and runs by words and by semaphores: which of it goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from .walk import EmulatedLaunch, prepare

#: To a compilation.
_TOGETHER = 8


class BothWays(Protocol):
    """A launch of a number, twice."""

    @property
    def number(self) -> int: ...
    @property
    def words(self) -> EmulatedLaunch: ...
    @property
    def semaphores(self) -> EmulatedLaunch: ...

    def troubles(self, seed: int) -> list[str]:
        """What is wrong under a schedule."""
        ...


def searched(
    drawn: Callable[[int], BothWays | None], numbers: Iterable[int], seeds: int
) -> tuple[int, list[tuple[int, list[str]]]]:
    """How many are drawn by ``numbers``, and the numbers of those with which something is wrong."""
    every = [one for number in numbers if (one := drawn(number)) is not None]
    wrong = []
    for first in range(0, len(every), _TOGETHER):
        some = every[first : first + _TOGETHER]
        prepare([run for one in some for run in (one.words, one.semaphores)])
        for one in some:
            troubles = [trouble for seed in range(seeds) for trouble in one.troubles(seed)]
            if troubles:
                wrong.append((one.number, troubles))
    return len(every), wrong
