"""Launches of steps by number of slots: a step of few sequences takes less time in a launch of few slots.

Slots are claimed from the first on, so that the sequences of a decoder with 64 slots that hold 3 are in slots 0 to 2.
A launch of 16 slots then runs the step, on the first 16 rows of the same tensors:

    launches of 1, 16, 64 slots      sequences in slots 0, 1, 2     16
                                     sequences in slots 0, 40       64
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from interlace.nn.decoder.launch import StepLaunch

#: Builds the launch of so many slots, or returns a reason why there is none.
BatchBuilder = Callable[[int], StepLaunch | str]


class BatchLaunches:
    """Launches of a decoder's steps.

    Args:
        batch: number of slots of the decoder.
        launch: launch of all slots, or the reason why there is none.
        build_launch: see ``BatchBuilder``.
    """

    def __init__(self, batch: int, launch: StepLaunch | str, build_launch: BatchBuilder) -> None:
        self._launches = {batch: launch} if isinstance(launch, StepLaunch) else {}
        self._build_launch = build_launch

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of slots for which there are launches, in ascending order."""
        return tuple(sorted(self._launches))

    def list_missing(self, sizes: Iterable[int]) -> list[int]:
        """Return those of some numbers of slots for which launches may be built, in descending order."""
        most = max(self._launches, default=0)
        return sorted({slots for slots in sizes if 0 < slots < most} - {*self._launches}, reverse=True)

    def build(self, slots: int) -> None:
        """Build the launch of so many slots, and keep it if its steps take less time than those of more slots."""
        if not self.list_missing([slots]):
            return
        launch = self._build_launch(slots)
        if isinstance(launch, StepLaunch) and launch.step_us <= self.find(slots).step_us:
            self._launches[slots] = launch

    def find(self, slots: int) -> StepLaunch:
        """Return the launch of the fewest slots that has so many."""
        return self._launches[min(size for size in self._launches if size >= slots)]


def take_rows(tensors: Mapping[str, torch.Tensor], slots: int, is_paged: bool) -> dict[str, torch.Tensor]:
    """Return the first rows of a step's tensors: those of slots, not of pages.

    Args:
        tensors: tensors with a row for each slot, by the names of ``build_decode_graph``.
        is_paged: True if the caches have a row for each page.
    """
    return {
        name: tensor if is_paged and name.endswith("_cache") else tensor[:slots] for name, tensor in tensors.items()
    }
