"""Tables for one launch of items: each waits for one semaphore, which was posted to, and posts to one of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import numpy as np
import numpy.typing as npt

from interlace.kernels.abi import AXES, ITEM, RECORD, SYNC, TRACE, WAIT

TIMEOUT_NS = 100_000


@dataclass(frozen=True)
class Sync:
    """``abi.SYNC``: tables, counters, and what a run leaves there.

    Attributes:
        semaphores: number 0 is waited for, by all; item ``i`` posts to number ``i + 1``.
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
        """All of them."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def packed(self) -> bytes:
        """The struct."""
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
    """Tables for the items of a grid of up to three dimensions.

    ``posted``: of the 1 that every item waits for; ``run``: so many runs are over.
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
