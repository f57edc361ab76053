"""A dispatcher on the host: a thread that fills the mailboxes of ``dispatch/dispatcher.cuh`` through mapped memory.

It exists to measure how much longer an item takes to arrive when the dispatcher is on the other side of the bus. It
serves one run after another, including replays of a captured launch, until it is closed. A watchdog error also ends it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

import numpy as np

from interlace.core.jit import cached_njit
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.run import RunHandle
from interlace.graph.access import Ints
from interlace.megakernel.compose import LAUNCH
from interlace.megakernel.constants import HELD
from interlace.megakernel.dispatch import EMPTIED, STOP, TURN
from interlace.megakernel.ready_queue import ReadyGroups
from interlace.plan.plan import Dispatch


class HostDispatchedExecutor(MegakernelExecutor):
    """Megakernel of a plan under DISPATCHER that a host thread feeds. Call ``close`` to end the thread."""

    dispatches = (Dispatch.DISPATCHER,)
    _thread: Thread | None = None

    def _allocate(self) -> None:
        super()._allocate()
        if self._device.type == "cuda":  # pinned memory has the same address on the device
            self._heads = self._torch.zeros(self._heads.shape, dtype=self._heads.dtype, pin_memory=True)

    def pack_parameter_for(self, operands: Any, items: Any, count: int, workers: int) -> bytes:
        launch = LAUNCH.ctype.from_buffer_copy(super().pack_parameter_for(operands, items, count, workers))
        launch.queue.ready = -1  # no block on the device dispatches
        return bytes(launch)

    def run(self, tensors: Mapping[str, Any]) -> RunHandle:
        """Enqueue a run as every executor does; the first call starts the thread."""
        if self._thread is None:
            self._closed = np.zeros(2, np.int64)  # flags: end requested, thread is serving
            ready = ReadyGroups.from_table(self._table)
            groups = ready.wakes.ptr, ready.wakes.values, ready.rows.ptr, ready.rows.values, ready.missing
            boxes = self._heads.numpy()
            given = boxes, self._table.workers, len(self.plan.items), ready.first, ready.posts, *groups, self._closed
            self._thread = Thread(target=_serve, args=given, daemon=True)
            self._thread.start()
            while not self._closed[1] and self._thread.is_alive():  # wait for compilation, which outlasts the watchdog
                time.sleep(1e-3)
        return super().run(tensors)

    def close(self) -> None:
        """End the thread. Call it only after the last run has ended."""
        if self._thread is not None:
            self._closed[0] = 1
            self._thread.join()


@cached_njit(nogil=True)
def _serve(
    boxes: Ints,
    workers: int,
    count: int,
    first: Ints,
    posts: Ints,
    wakes: Ints,
    groups: Ints,
    members: Ints,
    rows: Ints,
    missing: Ints,
    closed: Ints,
) -> None:
    """Serve one run after another until closed; the arrays are those of ``ReadyGroups``."""
    queue = np.empty(count, np.int64)
    run = 0
    closed[1] = 1
    while True:
        run += 1
        first_box = (run + 1) % 2 * workers
        queue[: len(first)] = first
        head, tail = 0, len(first)
        posted, met = np.zeros(len(posts), np.int64), np.zeros(len(missing), np.int64)
        given, back = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        serves, taken = np.ones(workers, np.bool_), 0  # workers without a stop message; number that received theirs
        while taken < workers:
            if closed[0]:
                return
            for w in range(workers):
                if back[w] == given[w]:
                    continue
                word = boxes[(first_box + w) * HELD + back[w] % HELD]
                if not word & EMPTIED:
                    continue
                back[w] += 1
                if not serves[w] and back[w] == given[w]:
                    taken += 1
                semaphore = (word & (EMPTIED - 1)) - 1
                if semaphore < 0:
                    continue
                posted[semaphore] += 1
                if posted[semaphore] < posts[semaphore]:
                    continue
                for n in range(wakes[semaphore], wakes[semaphore + 1]):
                    group = groups[n]
                    met[group] += 1
                    if met[group] == missing[group]:
                        for m in range(members[group], members[group + 1]):
                            queue[tail] = rows[m]
                            tail += 1
            for held in range(HELD):
                if held and 0 < count - head <= workers:
                    break
                for w in range(workers):
                    if serves[w] and given[w] - back[w] == held and (head < tail or head == count):
                        word = STOP
                        if head < tail:
                            word = queue[head]
                            head += 1
                        else:
                            serves[w] = False
                        boxes[(first_box + w) * HELD + given[w] % HELD] = (
                            run << 32 | (given[w] // HELD % 2) * TURN | word
                        )
                        given[w] += 1
