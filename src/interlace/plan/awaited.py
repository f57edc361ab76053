"""Which of the semaphores that are needed are awaited: ranges against ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph import ragged
from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, held, offsets, ranges
from interlace.plan.posts import Posted


@dataclass(frozen=True)
class Awaited:
    """Ragged rows of ranges of semaphores: row ``i`` holds ranges ``ptr[i]:ptr[i + 1]``."""

    ptr: Ints
    low: Ints
    count: Ints
    step: Ints

    @property
    def sizes(self) -> Ints:
        """Number of semaphores in each row."""
        return np.diff(offsets(self.count)[self.ptr])

    def take(self, rows: Ints) -> Awaited:
        """The given rows."""
        taken = Groups(self.ptr, np.arange(len(self.low), dtype=np.int64)).take(rows)
        return Awaited(taken.ptr, *(column[taken.values] for column in (self.low, self.count, self.step)))

    def hold_whole(self, row: Ints, posted: Posted, semaphores: int) -> NDArray[np.bool_]:
        """True where one range of the row holds all semaphores of ``posted``: the last one that begins before it."""
        width = semaphores + 1
        own = np.repeat(np.arange(len(self.ptr) - 1, dtype=np.int64), np.diff(self.ptr))
        order = np.argsort(own * width + self.low, kind="stable")
        at = np.searchsorted((own * width + self.low)[order], row * width + posted.first, side="right") - 1
        candidate = np.append(order, -1)[at]
        low, count, step = (np.append(column, 1)[candidate] for column in (self.low, self.count, self.step))
        whole: NDArray[np.bool_] = (
            (at >= 0)
            & (np.append(own, -1)[candidate] == row)
            & (posted.first >= 0)
            & ((posted.first - low) % step == 0)
            & (posted.last <= low + (count - 1) * step)
            & ((posted.count == 1) | (posted.stride % step == 0))
        )
        return whole

    def hold(self, row: Ints, semaphore: Ints, semaphores: int) -> NDArray[np.bool_]:
        """True where the row holds the semaphore, one of ``semaphores``; -1 is held by none."""
        if self.count.sum() > ragged.BATCH:  # a single row: those of a batch hold fewer
            marked: NDArray[np.bool_] = np.append(held(self.low, self.count, self.step, semaphores), False)
            return marked[semaphore]  # the last entry is that of -1
        width = semaphores + 1
        own = np.repeat(np.arange(len(self.ptr) - 1, dtype=np.int64), self.sizes)
        values = ranges(self.low, self.count, self.step)
        return np.isin(row * width + semaphore, own * width + values) & (semaphore >= 0)
