"""Ranges of semaphores that items await, and the test whether they contain the semaphores that a dependency needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph import ragged
from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges, mark_covered
from interlace.plan.posts import PostedRanges


@dataclass(frozen=True)
class AwaitedRanges:
    """Ragged rows (CSR) of ranges of semaphores: row ``i`` holds ranges ``ptr[i]:ptr[i + 1]``."""

    ptr: Ints
    low: Ints
    count: Ints
    step: Ints

    @property
    def sizes(self) -> Ints:
        """Number of semaphores in each row."""
        return np.diff(compute_offsets(self.count)[self.ptr])

    def take(self, rows: Ints) -> AwaitedRanges:
        """Return the given rows."""
        taken = Groups(self.ptr, np.arange(len(self.low), dtype=np.int64)).take(rows)
        return AwaitedRanges(taken.ptr, *(column[taken.values] for column in (self.low, self.count, self.step)))

    def contains_range(self, row: Ints, posted: PostedRanges, semaphores: int) -> NDArray[np.bool_]:
        """Return True where one range of the row contains all semaphores of ``posted``.

        Only the last range of the row that begins at or before them is examined.
        """
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

    def contains(self, row: Ints, semaphore: Ints, semaphores: int) -> NDArray[np.bool_]:
        """Return True where the row contains the semaphore, one of ``semaphores``; no row contains -1."""
        if self.count.sum() > ragged.BATCH_ENTRIES:  # only a single row can hold more than a batch
            marked: NDArray[np.bool_] = np.append(mark_covered(self.low, self.count, self.step, semaphores), False)
            return marked[semaphore]  # the last entry serves -1
        width = semaphores + 1
        own = np.repeat(np.arange(len(self.ptr) - 1, dtype=np.int64), self.sizes)
        values = expand_ranges(self.low, self.count, self.step)
        return np.isin(row * width + semaphore, own * width + values) & (semaphore >= 0)
