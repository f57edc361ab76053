"""Exact fully associative caches over a stream of dense unit numbers: LRU and Belady's minimum.

A *unit* is loaded and evicted as a whole: a tile, a panel. A stream is an array of unit numbers
0..units - 1 in the order of their accesses. Worked example, capacity 2 units:

    time            1     2     3     4     5     6
    unit            0     1     0     2     1     0
    LRU   hit?      -     -     yes   -     -     -       1 hit
          after     0     0 1   1 0   0 2   2 1   1 0     oldest first
    OPT   hit?      -     -     yes   -     yes   -       2 hits
          after     0     0 1   0 1   1 2   1 2   1 0     at 4, unit 0 is needed later than 1

**LRU without a list.** Each time is the latest access of its unit (a *live* time) until that unit is accessed again.
The resident units are those whose latest access is no earlier than a *horizon*. An access hits if the previous access
to its unit is no earlier than the horizon. An eviction moves the horizon past the earliest live time. The live times
are one bit each, in time order, so an access clears one bit and an eviction finds the next. In the example, at time 4,
times 2 and 3 are live (units 1 and 0) and the horizon passes 2; unit 1, last accessed at 2, then misses at 5.

**OPT without units.** The cache is the set of times of the next uses of the units that it holds. An access hits if its
own time is in the set. A load into a full cache removes the set's maximum (Belady, 1966). The set is a tree of bitmaps
with 64 children per word, so every operation takes log64 of the stream's length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from interlace.core.jit import cached_njit
from interlace.orders.stream import Integers, Stream, Units

# Positions of set bits in a 64-bit word, one machine instruction each: ``0b0110_1000`` has ``find_lowest_bit`` 3 and
# ``find_highest_bit`` 6. Neither is defined for zero. Python's ``int.bit_length`` does the same, but numba does not
# compile it.
WORD_BITS = 64
NONE_SET = np.uint64(0)
ALL_SET = np.uint64(2**64 - 1)
ONE = np.uint64(1)


def _emit_lowest_bit(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _emit_highest_bit(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(zeros.type, WORD_BITS - 1), zeros)

    return types.int64(types.uint64), generate


# Signature as seen by kernels: one uint64 in, the bit's position out.
find_lowest_bit: Callable[[np.uint64], int] = cast(Any, intrinsic(_emit_lowest_bit))
find_highest_bit: Callable[[np.uint64], int] = cast(Any, intrinsic(_emit_highest_bit))


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Hits:
    """Hits of a cache over a stream. Without sizes, each unit counts as one byte.

    Attributes:
        accesses, hits: number of accesses and of hits.
        bytes, hit_bytes: bytes of the units accessed, and of those that hit.
    """

    accesses: int
    hits: int
    bytes: int
    hit_bytes: int

    @property
    def loads(self) -> int:
        """Number of accesses that missed."""
        return self.accesses - self.hits

    @property
    def load_bytes(self) -> int:
        """Bytes fetched by the accesses that missed."""
        return self.bytes - self.hit_bytes


def simulate_lru(units: Integers, capacity: int, sizes: Integers | None = None) -> Hits:
    """Return the hits of a fully associative cache that evicts the least recently used unit.

    Args:
        units: stream of unit numbers, a 1-D integer array.
        capacity: capacity in bytes with ``sizes``, in units without.
        sizes: bytes of each unit, one entry per unit number. A load evicts the least recently used units
            until it fits.

    Raises:
        StreamError: the stream is not an array of unit numbers, or the sizes are not one positive number per unit.
        CapacityError: a unit in ``sizes`` is larger than the cache. It could only be loaded around the
            cache, which is another policy; the error is raised before any work.
    """
    mask, accessed, missed = _replay(units, capacity, sizes)
    return Hits(len(mask), int(np.count_nonzero(mask)), accessed, accessed - missed)


def simulate_lru_mask(units: Integers, capacity: int, sizes: Integers | None = None) -> Mask:
    """Return for each access whether it hits; arguments and errors as for :func:`lru`."""
    return _replay(units, capacity, sizes)[0]


def simulate_opt(units: Integers, capacity: int) -> Hits:
    """Return the hits of the best possible cache of ``capacity`` units: it evicts the unit used furthest in the future.

    As for :func:`lru`, the unit that is accessed must be in the cache: nothing is loaded around it.

    Raises:
        StreamError: the stream is not an array of unit numbers.
        CapacityError: the capacity is below one unit.
    """
    stream = Stream.from_units(units, None)
    stream.check_capacity(capacity)
    hits = int(_run_opt(stream.units, capacity, stream.count))
    return Hits(len(units), hits, len(units), hits)


def _replay(units: Integers, capacity: int, sizes: Integers | None) -> tuple[Mask, int, int]:
    stream = Stream.from_units(units, sizes)
    stream.check_capacity(capacity)
    replayed: tuple[Mask, int, int] = _run_lru(stream.units, stream.sizes, capacity, stream.count)
    return replayed


@cached_njit
def _run_lru(units: Units, sizes: Units | None, capacity: int, count: int) -> tuple[Mask, int, int]:
    """Return the mask of hits, the bytes accessed, and the bytes missed.

    Hits are unpredictable, so no branch depends on them: mispredictions would cost more than all other work. Only a
    second eviction for one load is a branch; equal sizes never need it.
    """
    hits = np.empty(len(units), np.bool_)
    # Times start at 1, so that 0 means "never". Future times are marked live in advance; the horizon cannot
    # reach them, because the unit accessed now is live and is not evicted.
    latest = np.zeros(count, np.int32)
    live = np.full(len(units) // WORD_BITS + 1, ALL_SET)
    word = 0
    front = live[0] ^ ONE  # word that contains the horizon; its copy in memory is stale
    horizon = 1
    room = capacity
    accessed = 0
    missed = 0
    for time in range(1, len(units) + 1):
        unit = units[time - 1]
        before = np.int64(latest[unit])
        latest[unit] = time
        miss = int(before < horizon)
        hits[time - 1] = 1 - miss
        size = 1 if sizes is None else sizes[unit]
        accessed += size
        missed += size * miss
        room -= size * miss
        dead = ONE << np.uint64(before & 63)
        live[before >> 6] &= ~dead
        front &= ~(dead if before >> 6 == word else NONE_SET)
        while True:
            # A miss has not changed ``front``, so the horizon is still the first to be evicted.
            full = int(room < 0)
            room += full * (1 if sizes is None else sizes[units[horizon - 1]])
            front &= front - np.uint64(full)
            while front == NONE_SET:
                word += 1
                front = live[word]
            horizon = (word << 6) + find_lowest_bit(front)
            if room >= 0:
                break
    return hits, accessed, missed


@cached_njit
def _run_opt(units: Units, capacity: int, count: int) -> int:
    never = len(units)
    following = np.empty(len(units), np.int32)
    upcoming = np.full(count, never, np.int32)
    for time in range(len(units) - 1, -1, -1):
        following[time] = upcoming[units[time]]
        upcoming[units[time]] = time

    # Level 0 has a bit per time; each level above has a bit per non-zero word of the level below.
    start = np.zeros(WORD_BITS, np.int64)
    levels = 0
    words = len(units)
    total = 0
    while levels == 0 or words > 1:
        words = (words + 63) >> 6
        start[levels] = total
        total += words
        levels += 1
    needed = np.zeros(total, np.uint64)

    hits = 0
    room = capacity
    for time in range(len(units)):
        if needed[time >> 6] >> np.uint64(time & 63) & ONE:
            hits += 1
        elif room > 0:
            room -= 1
        else:
            furthest = 0
            for level in range(levels - 1, -1, -1):
                furthest = (furthest << 6) + find_highest_bit(needed[start[level] + furthest])
            for level in range(levels):
                at = start[level] + (furthest >> 6)
                needed[at] &= ~(ONE << np.uint64(furthest & 63))
                if needed[at] != NONE_SET:
                    break
                furthest >>= 6
        if following[time] == never:
            room += 1  # a unit without a next use may be evicted at any time
            continue
        position = np.int64(following[time])
        for level in range(levels):
            at = start[level] + (position >> 6)
            was = needed[at]
            needed[at] = was | ONE << np.uint64(position & 63)
            if was != NONE_SET:
                break
            position >>= 6
    return hits
