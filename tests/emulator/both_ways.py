"""Search for failures among random launches that run with LL hand-off (``words``) and with semaphores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from .programs import EmulatedLaunch, prepare

#: Number of pairs of launches per compilation.
_TOGETHER = 8


class BothWays(Protocol):
    """The launch of a seed number, with LL hand-off and with semaphores."""

    @property
    def number(self) -> int: ...
    @property
    def words(self) -> EmulatedLaunch: ...
    @property
    def semaphores(self) -> EmulatedLaunch: ...

    def troubles(self, seed: int) -> list[str]:
        """Return the failures under a schedule."""
        ...


def search_failures(
    drawn: Callable[[int], BothWays | None], numbers: Iterable[int], seeds: int
) -> tuple[int, list[tuple[int, list[str]]]]:
    """Return how many launches ``numbers`` yield, and the numbers of those that fail, with their failures."""
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
