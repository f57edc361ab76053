"""Memory that workers share, compiled.

A worker that wants ``demand`` bytes/ns and is granted ``min(demand, level)`` runs at ``min(1, level / demand)`` of
full speed. The level is one for all and as high as the capacity allows, so that those who want little are not
slowed by those who want much (max-min fairness; what queues of equal length do):

    capacity 4 bytes/ns, demands 1, 2 and 3
    level 1.5: granted 1, 1.5 and 1.5, speeds 1, 0.75 and 0.5

Work is counted in nanoseconds left at full speed. It is brought up to date for all, and the level found anew,
whenever somebody begins or stops to load: a few passes over the workers, each of which uses vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import cached_njit

Floats = NDArray[np.float64]

UNLIMITED = 1e300  # a finite level, because 0 times it has to be 0
#: NaN does not occur here, infinity does. Lets sums and minima over workers use vectors.
FAST = {"nnan", "nsz", "reassoc", "contract"}


@cached_njit(fastmath=FAST)
def count_work(left: Floats, slowness: Floats, level: float, passed_ns: float) -> None:
    """Take off what was done at this level; ``slowness`` is 1 / demand, 0 for those who load nothing."""
    for w in range(len(left)):
        left[w] = max(left[w] - passed_ns * min(1.0, level * slowness[w]), 0.0)


@cached_njit(fastmath=FAST)
def find_level(demand: Floats, capacity: float) -> float:
    """The level at which everything granted adds up to the capacity; unlimited if it suffices.

    Starts too low, with equal parts, and hands out what those leave who want less.
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


@cached_njit(fastmath=FAST)
def foresee(when: Floats, limit: Floats, demand: Floats, left: Floats, inverse: float, t: float) -> None:
    """When everybody who loads acts next at this level, given as 1 / level, but by its limit in any case."""
    for w in range(len(when)):
        acts = min(t + left[w] * max(1.0, demand[w] * inverse), limit[w])
        when[w] = acts if demand[w] > 0.0 else when[w]
