"""Tables for one launch of items: each waits for one semaphore, which was posted to, and posts to one of its own."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

#: Columns of the tables of items and waits, of which the text reads those named in ``semaphore_cuda``.
ITEM_COLUMNS, WAIT_COLUMNS = 16, 8
TIMEOUT_NS = 100_000


@dataclass(frozen=True)
class Sync:
    """``Sync`` of ``kernels/primitives/semaphore_cuda``: tables, counters, and what a run leaves there.

    Attributes:
        semaphores: number 0 is waited for, by all; item ``i`` posts to number ``i + 1``.
    """

    items: npt.NDArray[np.int32]
    waits: npt.NDArray[np.int32]
    semaphores: npt.NDArray[np.int32]
    done: npt.NDArray[np.int32]
    fault: npt.NDArray[np.int32]
    record: npt.NDArray[np.int32]
    trace: npt.NDArray[np.int64]
    starts: npt.NDArray[np.uint64]

    @property
    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        """In the order of the struct."""
        return self.items, self.waits, self.semaphores, self.done, self.fault, self.record, self.trace, self.starts

    def packed(self) -> bytes:
        """The struct."""
        pointers = (array.ctypes.data for array in self.arrays)
        return struct.pack("<8Q2Q2i", *pointers, TIMEOUT_NS, 0, 0, len(self.items))


def sync_of(grid: tuple[int, ...], posted: int = 1, run: int = 0) -> Sync:
    """Tables for the items of a grid of up to three dimensions.

    ``posted``: of the 1 that every item waits for; ``run``: so many runs are over.
    """
    count = prod(grid)
    items = np.zeros((count, ITEM_COLUMNS), np.int32)
    for number, at in enumerate(np.ndindex(*grid)):
        items[number, 1 : 1 + len(at)] = at
        items[number, 6], items[number, 8], items[number, 9], items[number, 14] = 0, 1, number + 1, number
    waits = np.zeros((1, WAIT_COLUMNS), np.int32)
    waits[0, :4] = 0, 1, 1, 1  # the first semaphore, how many, between them, threshold
    semaphores = np.zeros(count + 1, np.int32)
    semaphores[:1] = np.array([run + posted]).astype(np.int32)  # counters wrap
    return Sync(
        items,
        waits,
        semaphores,
        done=np.zeros(count, np.int32),
        fault=np.zeros(1, np.int32),
        record=np.zeros(5, np.int32),
        trace=np.zeros((count, 4), np.int64),
        starts=np.array([run * count], np.uint64),
    )
