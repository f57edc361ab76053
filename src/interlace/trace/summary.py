"""Summary of a trace: waves, tails, and the breakdown of the workers' time.

Worked example, 2 workers, an op of 3 items of 100 ns, each begun as soon as a worker is free:

    worker 0    0..100 item 0    100..200 item 2        waves 1.5
    worker 1    0..100 item 1                           the last wave, 100..200, is half idle: tail 0.5

Of the 400 ns of worker time, 300 are work: busy 0.75, waiting 0, idle 0.25.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from interlace.core.errors import ItemError, PlanError
from interlace.graph.access import Ints
from interlace.trace.events import Trace


@dataclass(frozen=True)
class OpSummary:
    """Summary of one op of a trace.

    Attributes:
        op: name of the op.
        items: number of its items.
        waves: items divided by workers.
        tail: idle share of its last wave. The last wave is the last ``items - workers * (ceil(waves) - 1)`` items by
            start time. It lasts from the first of these starts to the end of the op's last item. Worker time in this
            interval is idle unless the worker is busy with an item of any op.
        start_ns, end_ns: its first start and last end, from the trace's first arrival.
        last_wave_ns: start of its last wave, from the trace's first arrival.
        waiting_ns, working_ns: sums over its items.
    """

    op: str
    items: int
    waves: float
    tail: float
    start_ns: int
    end_ns: int
    last_wave_ns: int
    waiting_ns: int
    working_ns: int


@dataclass(frozen=True)
class Summary:
    """Summary of a trace.

    Attributes:
        workers: number of workers; some may have had no item.
        span_ns: time from the first arrival to the last end.
        busy: share of ``workers * span_ns`` in which a worker is between start and end of an item, or of several: where
            loads are prefetched, one item begins before the previous one has ended.
        waiting: share in which a worker is between arrival and start of an item, and works on no other.
        ops: summaries of the ops that have items, in graph order.
    """

    workers: int
    span_ns: int
    busy: float
    waiting: float
    ops: tuple[OpSummary, ...]

    @property
    def idle(self) -> float:
        """Remaining share: tickets, launches, and workers without an item."""
        return 1.0 - self.busy - self.waiting

    @staticmethod
    def from_trace(trace: Trace, workers: int) -> Summary:
        """Summarise a trace.

        Args:
            trace: trace with at least one item.
            workers: number of workers of a persistent launch, otherwise of blocks that are resident at once.

        Raises:
            PlanError: fewer than one worker.
            ItemError: a trace without items.
        """
        if workers < 1:
            raise PlanError(f"a trace of {workers} workers; say how many there were, at least one")
        if not len(trace.op):
            raise ItemError("the trace has no items; run a plan that has some")
        time_ns = max(workers * trace.span_ns, 1)
        busy = _compute_covered_ns(trace.worker, trace.start_ns, trace.end_ns)
        waiting = _compute_covered_ns(trace.worker, trace.wait_ns, trace.end_ns) - busy
        ops = tuple(_summarise_op(trace, int(o), workers) for o in np.unique(trace.op))
        return Summary(workers, trace.span_ns, busy / time_ns, waiting / time_ns, ops)


def _summarise_op(trace: Trace, o: int, workers: int) -> OpSummary:
    mine = trace.op == o
    start, end, items = trace.start_ns[mine], trace.end_ns[mine], int(mine.sum())
    last_wave = items - workers * ((items - 1) // workers)
    begins_ns, ends_ns = int(np.sort(start)[-last_wave]), int(end.max())
    begin, stop = (np.clip(t, begins_ns, ends_ns) for t in (trace.start_ns, trace.end_ns))
    time_ns = workers * (ends_ns - begins_ns)
    first_ns = int(trace.wait_ns.min())
    return OpSummary(
        trace.ops[o],
        items,
        items / workers,
        1.0 - _compute_covered_ns(trace.worker, begin, stop) / time_ns if time_ns else 0.0,
        int(start.min()) - first_ns,
        ends_ns - first_ns,
        begins_ns - first_ns,
        int((start - trace.wait_ns[mine]).sum()),
        int((end - start).sum()),
    )


def _compute_covered_ns(worker: Ints, begin: Ints, end: Ints) -> int:
    """Return the time that the intervals of each worker cover, overlaps counted once, summed over all workers."""
    order = np.lexsort((begin, worker))
    worker, begin, end = worker[order], begin[order], end[order]
    # Each worker's intervals are shifted to a disjoint stretch of time, so that one running maximum serves all.
    origin = begin.min()
    apart = np.cumsum(np.r_[0, np.diff(worker) != 0]) * (end.max() - origin + 1)
    begin, end = begin - origin + apart, end - origin + apart
    covered = np.maximum.accumulate(np.r_[0, end[:-1]])
    return int(np.maximum(end - np.maximum(begin, covered), 0).sum())
