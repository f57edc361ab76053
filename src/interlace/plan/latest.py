"""Last item of a plan's sequence that posts a semaphore, and last item whose post another item awaits."""

from __future__ import annotations

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.ragged import fold
from interlace.plan.plan import Plan


def find_last_posters(plan: Plan) -> Ints:
    """Return the last item that posts each semaphore, -1 if none does."""
    posting = np.flatnonzero(plan.items.post >= 0)
    last = np.full(plan.semaphores, -1, np.int64)
    np.maximum.at(last, plan.items.post[posting], posting)
    return last


def find_latest_awaited(plan: Plan) -> Ints:
    """Return the last item that posts a semaphore awaited by each item, -1 if the item waits for nothing."""
    waits = plan.waits
    awaited = fold(np.maximum, find_last_posters(plan), waits.first, waits.count, waits.stride)
    latest = np.full(len(plan.items), -1, np.int64)
    np.maximum.at(latest, waits.item, awaited)
    return latest
