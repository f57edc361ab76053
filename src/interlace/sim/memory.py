"""Memory bandwidth shared by workers, compiled.

A worker that demands ``demand`` bytes/ns and is granted ``min(demand, level)`` runs at ``min(1, level / demand)`` of
full speed. The level is common to all workers and as high as the capacity allows, so that workers with a small demand
are not slowed by those with a large one (max-min fairness, which queues of equal length produce):

    capacity 4 bytes/ns, demands 1, 2 and 3
    level 1.5: granted 1, 1.5 and 1.5, speeds 1, 0.75 and 0.5

Work is counted in nanoseconds left at full speed. Whenever a worker begins or stops to load, the work of all workers is
brought up to date and the level is computed anew: a few vectorised passes over the workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import cached_njit

Floats = NDArray[np.float64]

UNLIMITED = 1e300  # finite, because 0 times the level has to be 0
#: Values may be infinite but never NaN. These flags let sums and minima over workers vectorise.
FAST = {"nnan", "nsz", "reassoc", "contract"}


@cached_njit(allocates=False, fastmath=FAST)
def count_work(left: Floats, slowness: Floats, level: float, passed_ns: float) -> None:
    """Subtract the work done at this level; ``slowness`` is 1 / demand, 0 for workers that load nothing."""
    for w in range(len(left)):
        left[w] = max(left[w] - passed_ns * min(1.0, level * slowness[w]), 0.0)


@cached_njit(allocates=False, fastmath=FAST)
def find_level(demand: Floats, capacity: float) -> float:
    """Return the level at which all grants add up to the capacity; UNLIMITED if the capacity suffices.

    The search starts too low, with equal parts, and redistributes what workers with a smaller demand do not use.
    """
    total, loading = 0.0, 0
    for w in range(len(demand)):
        total += demand[w]
        loading += demand[w] > 0.0
    if total <= capacity:
        return UNLIMITED
    level = capacity / loading
    while True:
        granted, limited = 0.0, 0
        for w in range(len(demand)):
            granted += demand[w] if demand[w] <= level else 0.0
            limited += demand[w] > level
        if limited == 0:
            return level
        higher = (capacity - granted) / limited
        if higher <= level:
            return level
        level = higher


@cached_njit(allocates=False, fastmath=FAST)
def schedule_next_actions(when: Floats, limit: Floats, demand: Floats, left: Floats, inverse: float, t: float) -> None:
    """Update when each loading worker acts next at this level (passed as 1 / level), at the latest by its limit."""
    for w in range(len(when)):
        acts = min(t + left[w] * max(1.0, demand[w] * inverse), limit[w])
        when[w] = acts if demand[w] > 0.0 else when[w]
