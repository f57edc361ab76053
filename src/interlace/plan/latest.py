"""The last item of a plan's sequence that posts a semaphore, and that an item waits for."""

from __future__ import annotations

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.ragged import fold
from interlace.plan.plan import Plan


def last_posters(plan: Plan) -> Ints:
    """Of each semaphore the last item that posts it, -1 if none does."""
    posting = np.flatnonzero(plan.items.post >= 0)
    last = np.full(plan.semaphores, -1, np.int64)
    np.maximum.at(last, plan.items.post[posting], posting)
    return last


def latest_awaited(plan: Plan) -> Ints:
    """Of each item the last one that posts what it waits for, -1 if it waits for none."""
    waits = plan.waits
    awaited = fold(np.maximum, last_posters(plan), waits.first, waits.count, waits.stride)
    latest = np.full(len(plan.items), -1, np.int64)
    np.maximum.at(latest, waits.item, awaited)
    return latest
