"""Stolen items of a trace, with thief and victim."""

from __future__ import annotations

import numpy as np

from interlace.graph.access import Ints
from interlace.trace.events import Trace


def find_steals(owner: Ints, trace: Trace) -> Ints:
    """Return rows (item, thief, victim), shape (n, 3), in the order in which the thieves arrived at the items.

    Args:
        owner: worker whose queue each item is in, -1 if there are no per-worker queues.
        trace: trace of an executor that follows the plan's dispatch.
    """
    taken = np.flatnonzero((owner >= 0) & (trace.worker != owner))
    taken = taken[np.argsort(trace.wait_ns[taken], kind="stable")]
    return np.stack([taken, trace.worker[taken], owner[taken]], axis=1)
