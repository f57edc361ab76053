"""Stack distances: the hits of LRU at every capacity, from one pass over a stream.

The *distance* of an access is what has been touched since the last access to its unit, that unit included
(Mattson, Gecsei, Slutz and Traiger, 1970). LRU hits if and only if that fits into the cache:

    unit        0     1     0     2     1     0
    distance    -     -     2     -     3     3        so 1 hit at capacity 2, 3 hits at 3 and more

Touched since time t are the units whose latest access is later than t. Of the later times, those are *dead*
whose unit came again since, so distance = (all that was accessed from t on) - (what of it is dead).
A Fenwick tree holds the dead ones (Fenwick, 1994): nothing is entered for an access, and one prefix is
read and one place updated when a unit comes again. Times start anew whenever the tree is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from interlace.core.errors import CapacityError
from interlace.core.jit import cached_njit
from interlace.orders.stream import Integers, Ints, Stream, Units

# Renumbering costs a pass over the tree. With room for four times the units it is rare, and the tree small.
SPARE = 4


@dataclass(frozen=True, eq=False)
class Distances:
    """Hits of LRU as a function of capacity. Without sizes each unit counts as one byte.

    Attributes:
        accesses, bytes: of the whole stream.
        smallest: the least capacity that holds every single unit.
        distance: the capacities at which something changes, ascending.
        hits_within, hit_bytes_within: hits at each of these capacities.
    """

    accesses: int
    bytes: int
    smallest: int
    distance: Ints
    hits_within: Ints
    hit_bytes_within: Ints

    def hits(self, capacity: ArrayLike) -> Ints:
        """Hits at each capacity, in the shape of ``capacity``.

        Raises:
            CapacityError: a capacity is below the largest unit.
        """
        return self._at(capacity, self.hits_within)

    def hit_bytes(self, capacity: ArrayLike) -> Ints:
        """Bytes that hit at each capacity, as :meth:`hits`."""
        return self._at(capacity, self.hit_bytes_within)

    def _at(self, capacity: ArrayLike, within: Ints) -> Ints:
        capacities = np.asarray(capacity)
        if capacities.min(initial=self.smallest) < self.smallest:
            raise CapacityError(
                f"capacity is {capacities.min()}, but the largest unit needs {self.smallest}; "
                "use smaller units or a larger cache"
            )
        found = np.searchsorted(self.distance, capacities, side="right")
        answer: Ints = np.concatenate([np.zeros(1, np.int64), within])[found]
        return answer


def stack_distances(units: Integers, sizes: Integers | None = None) -> Distances:
    """Distances of all accesses of a stream; arguments as for :func:`interlace.orders.cache.lru`.

    With ``sizes`` a distance is in bytes: the sizes of the distinct units touched since, the own included.
    It then says exactly what :func:`~interlace.orders.cache.lru` does with sizes, access by access, at every
    capacity that holds each unit by itself. For let u be evicted when v is loaded. All that was touched
    since u is resident then and v is not among it, and all this with u and v exceeds the capacity; so does
    the distance of u's next access, which is no smaller. And if u is not evicted, it was resident together
    with all that was touched since, so that its distance fits. It follows that a larger cache holds all
    that a smaller one holds, as with equal sizes. Below the largest unit nothing is said; see the errors.

    Raises:
        StreamError: as for ``lru``.
    """
    stream = Stream.of(units, sizes)
    distance = _distances(stream.units, stream.sizes, stream.count)
    if stream.sizes is None:
        count = np.bincount(distance).astype(np.int64)
        count[:1] = 0  # first accesses
        reached = np.flatnonzero(count)
        hits = np.cumsum(count[reached])
        return Distances(len(units), len(units), 1, reached, hits, hits)
    size = stream.sizes[stream.units].astype(np.int64)
    order = np.argsort(distance)[np.count_nonzero(distance == 0) :]
    return Distances(
        len(units),
        int(size.sum()),
        stream.largest,
        distance[order],
        np.arange(1, len(order) + 1),
        np.cumsum(size[order]),
    )


@cached_njit
def _distances(units: Units, sizes: Units | None, count: int) -> Ints:
    """Distance of each access, 0 for the first to its unit."""
    distances = np.zeros(len(units), np.int64)
    room = min(len(units), SPARE * count)
    dead = np.zeros(room + 1, np.int64)
    dead_in_all = 0
    accessed = np.zeros(room + 1, np.int64)  # bytes, before each place
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
    """Move the live times to the front, in their order; returns how many there are."""
    alive = 0
    for time in range(len(unit_at)):
        unit = unit_at[time]
        if latest[unit] == time:
            latest[unit] = alive
            unit_at[alive] = unit
            accessed[alive + 1] = accessed[alive] + (1 if sizes is None else sizes[unit])
            alive += 1
    return alive
