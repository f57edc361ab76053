"""Stack distances: the hits of LRU at every capacity, from one pass over a stream.

The *distance* of an access is the amount touched since the last access to its unit, including that unit
(Mattson, Gecsei, Slutz and Traiger, 1970). LRU hits if and only if the distance fits into the cache:

    unit        0     1     0     2     1     0
    distance    -     -     2     -     3     3        so 1 hit at capacity 2, 3 hits at 3 and more

The units touched since time t are those whose latest access is later than t. A later time is *dead* if its unit was
accessed again since. Hence distance = (all that was accessed from t on) - (the dead part of it).
A Fenwick tree holds the dead times (Fenwick, 1994): an access enters nothing. When a unit is accessed again, one prefix
sum is read and one entry updated. Times are renumbered from 0 whenever the tree is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from interlace.core.errors import CapacityError
from interlace.core.jit import cached_njit
from interlace.orders.stream import Integers, Ints, Stream, Units

# Renumbering costs a pass over the tree. With space for four times the units it is rare, and the tree is small.
SPARE = 4


@dataclass(frozen=True, eq=False)
class StackDistances:
    """Hits of LRU as a function of capacity. Without sizes, each unit counts as one byte.

    Attributes:
        accesses, bytes: number of accesses and bytes of the whole stream.
        smallest: minimum capacity that holds every single unit.
        distance: capacities at which the hits change, ascending.
        hits_within, hit_bytes_within: hits and their bytes at each of these capacities.
    """

    accesses: int
    bytes: int
    smallest: int
    distance: Ints
    hits_within: Ints
    hit_bytes_within: Ints

    def count_hits(self, capacity: ArrayLike) -> Ints:
        """Return the hits at each capacity, in the shape of ``capacity``.

        Raises:
            CapacityError: a capacity is below the largest unit.
        """
        return self._look_up(capacity, self.hits_within)

    def count_hit_bytes(self, capacity: ArrayLike) -> Ints:
        """Return the bytes that hit at each capacity, as :meth:`hits`."""
        return self._look_up(capacity, self.hit_bytes_within)

    def _look_up(self, capacity: ArrayLike, within: Ints) -> Ints:
        capacities = np.asarray(capacity)
        if capacities.min(initial=self.smallest) < self.smallest:
            raise CapacityError(
                f"capacity is {capacities.min()}, but the largest unit needs {self.smallest}; "
                "use smaller units or a larger cache"
            )
        found = np.searchsorted(self.distance, capacities, side="right")
        answer: Ints = np.concatenate([np.zeros(1, np.int64), within])[found]
        return answer


def compute_stack_distances(units: Integers, sizes: Integers | None = None) -> StackDistances:
    """Return the distances of all accesses of a stream; arguments as for :func:`interlace.orders.cache.simulate_lru`.

    With ``sizes``, a distance is in bytes: the sizes of the distinct units touched since, including the unit itself. It
    then predicts :func:`~interlace.orders.cache.simulate_lru` with sizes exactly, access by access, at every capacity
    that holds each unit by itself. Proof: let u be evicted when v is loaded. All units touched since u are then
    resident, and v is not among them. Together with u and v they exceed the capacity. The distance of u's next access
    is no smaller, so it exceeds the capacity too. Conversely, if u is not evicted, it was resident together with all
    units touched since, so its distance fits. It follows that a larger cache holds all that a smaller one holds, as
    with equal sizes. Nothing is predicted below the largest unit; see the errors.

    Raises:
        StreamError: as for ``lru``.
    """
    stream = Stream.from_units(units, sizes)
    distance = _compute_distances(stream.units, stream.sizes, stream.count)
    if stream.sizes is None:
        count = np.bincount(distance).astype(np.int64)
        count[:1] = 0  # first accesses
        reached = np.flatnonzero(count)
        hits = np.cumsum(count[reached])
        return StackDistances(len(units), len(units), 1, reached, hits, hits)
    size = stream.sizes[stream.units].astype(np.int64)
    order = np.argsort(distance)[np.count_nonzero(distance == 0) :]
    return StackDistances(
        len(units),
        int(size.sum()),
        stream.largest,
        distance[order],
        np.arange(1, len(order) + 1),
        np.cumsum(size[order]),
    )


@cached_njit
def _compute_distances(units: Units, sizes: Units | None, count: int) -> Ints:
    """Return the distance of each access, 0 for the first to its unit."""
    distances = np.zeros(len(units), np.int64)
    room = min(len(units), SPARE * count)
    dead = np.zeros(room + 1, np.int64)
    dead_in_all = 0
    accessed = np.zeros(room + 1, np.int64)  # bytes accessed before each time
    unit_at = np.empty(room, np.int32)
    latest = np.full(count, -1, np.int32)
    now = 0
    for access in range(len(units)):
        if now == room:
            now = _renumber(unit_at, sizes, accessed, latest)
            dead[:] = 0
            dead_in_all = 0
        unit = units[access]
        size = 1 if sizes is None else sizes[unit]
        before = np.int64(latest[unit])
        if before >= 0:
            dead_earlier = 0
            place = before
            while place > 0:
                dead_earlier += dead[place]
                place &= place - 1
            distances[access] = accessed[now] - accessed[before] - (dead_in_all - dead_earlier)
            place = before + 1
            while place <= room:
                dead[place] += size
                place += place & -place
            dead_in_all += size
        latest[unit] = now
        unit_at[now] = unit
        accessed[now + 1] = accessed[now] + size
        now += 1
    return distances


@cached_njit
def _renumber(unit_at: Units, sizes: Units | None, accessed: Ints, latest: Units) -> int:
    """Move the live times to the front, in their order; return their number."""
    alive = 0
    for time in range(len(unit_at)):
        unit = unit_at[time]
        if latest[unit] == time:
            latest[unit] = alive
            unit_at[alive] = unit
            accessed[alive + 1] = accessed[alive] + (1 if sizes is None else sizes[unit])
            alive += 1
    return alive
