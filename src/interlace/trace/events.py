"""A trace: when and where each item waited, started and ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from interlace.graph.access import Ints


@dataclass(frozen=True, eq=False)
class Trace:
    """One entry per item of a plan that ran, in sequence order; times in nanoseconds of one clock.

    Attributes:
        op, tile: op and tile of each item, as in the plan.
        worker, sm: worker and SM that ran it (a CPU has one SM per worker).
        wait_ns: time when the worker arrived at the item and began to wait.
        start_ns: time when its waits had ended.
        end_ns: time when it had posted.
        ops: names of the ops.
        clock: display name of the clock.
    """

    op: Ints
    tile: Ints
    worker: Ints
    sm: Ints
    wait_ns: Ints
    start_ns: Ints
    end_ns: Ints
    ops: tuple[str, ...]
    clock: str

    def select(self, rows: Ints) -> Trace:
        """Select some of the items."""
        columns = ("op", "tile", "worker", "sm", "wait_ns", "start_ns", "end_ns")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    @property
    def span_ns(self) -> int:
        """Time from the first arrival to the last end."""
        return int(self.end_ns.max() - self.wait_ns.min())

    @property
    def waiting_ns(self) -> int:
        """Sum over items of the time between arrival and start."""
        return int(np.sum(self.start_ns - self.wait_ns))

    @property
    def working_ns(self) -> int:
        """Sum over items of the time between start and end."""
        return int(np.sum(self.end_ns - self.start_ns))


def find_steals(owner: Ints, trace: Trace) -> Ints:
    """Return rows (item, thief, victim), shape (n, 3), in the order in which the thieves arrived at the items.

    Args:
        owner: worker whose queue each item is in, -1 if there are no per-worker queues.
        trace: trace of an executor that follows the plan's dispatch.
    """
    taken = np.flatnonzero((owner >= 0) & (trace.worker != owner))
    taken = taken[np.argsort(trace.wait_ns[taken], kind="stable")]
    return np.stack([taken, trace.worker[taken], owner[taken]], axis=1)
