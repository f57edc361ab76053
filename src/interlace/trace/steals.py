"""Which items of a trace were stolen, by whom and from whom."""

from __future__ import annotations

import numpy as np

from interlace.graph.access import Ints
from interlace.trace.events import Trace


def steals(owner: Ints, trace: Trace) -> Ints:
    """Rows (item, thief, victim), shape (n, 3), in the order in which the thieves arrived at the items.

    Args:
        owner: the worker in whose list each item is, -1 where there are no lists.
        trace: of an executor that keeps to the plan's dispatch.
    """
    taken = np.flatnonzero((owner >= 0) & (trace.worker != owner))
    taken = taken[np.argsort(trace.wait_ns[taken], kind="stable")]
    return np.stack([taken, trace.worker[taken], owner[taken]], axis=1)
