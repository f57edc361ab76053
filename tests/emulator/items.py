"""Tables for a launch of items: each waits for one shared semaphore and posts to its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import numpy as np
import numpy.typing as npt

from interlace.kernels.abi import AXES, ITEM, RECORD, SYNC, TRACE, WAIT

TIMEOUT_NS = 100_000


@dataclass(frozen=True)
class Sync:
    """``abi.SYNC``: tables, counters, and what a run writes to them.

    Attributes:
        semaphores: semaphore 0 is awaited by all items; item ``i`` posts to semaphore ``i + 1``.
    """

    items: npt.NDArray[np.void]
    waits: npt.NDArray[np.void]
    semaphores: npt.NDArray[np.int32]
    done: npt.NDArray[np.int32]
    fault: npt.NDArray[np.int32]
    record: npt.NDArray[np.void]
    trace: npt.NDArray[np.void]
    starts: npt.NDArray[np.uint64]

    @property
    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        """All arrays."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def pack(self) -> bytes:
        """Return the struct as bytes."""
        at = {field.name: getattr(self, field.name).ctypes.data for field in fields(self)}
        return SYNC.pack(
            **at,
            arrivals=None,  # kernels of loops split no reduction
            workspace=None,
            timeout_ns=TIMEOUT_NS,
            jitter_ns=0,
            first=0,
            programs=len(self.items),
        )


def sync_of(grid: tuple[int, ...], posted: int = 1, run: int = 0) -> Sync:
    """Build the tables for the items of a grid of up to three dimensions.

    Args:
        posted: number of posts that have arrived, of the 1 that every item waits for.
        run: number of completed runs.
    """
    count = prod(grid)
    items = np.zeros(count, ITEM.dtype)
    for axis, at in zip(AXES, np.indices(grid), strict=False):
        items[axis] = at.ravel()
    items["wait_hi"], items["number"], items["post"] = 1, np.arange(count), np.arange(count) + 1
    waits = np.zeros(1, WAIT.dtype)
    waits["count"], waits["stride"], waits["threshold"] = 1, 1, 1  # of the first semaphore
    semaphores = np.zeros(count + 1, np.int32)
    semaphores[:1] = np.array([run + posted]).astype(np.int32)  # counters wrap
    return Sync(
        items,
        waits,
        semaphores,
        done=np.zeros(count, np.int32),
        fault=np.zeros(1, np.int32),
        record=np.zeros(1, RECORD.dtype),
        trace=np.zeros(count, TRACE.dtype),
        starts=np.array([run * count], np.uint64),
    )
