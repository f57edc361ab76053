"""The L2 line by line: a set-associative cache whose sets are chosen by a hash of the line number.

Tile-level LRU is sharp: a cyclic stream a little larger than the cache misses always. A measured L2 is not.
Here lines fall into sets at random, so some sets overflow early and some late, and the hit rate of a cyclic
stream falls gradually around the capacity; more ways make it steeper (:mod:`interlace.sim.fit`).

**Sampling.** With ``sample=16`` only one set in 16 is simulated, and since the hash spreads lines evenly the
lines of those sets are a random sample (as in SHARDS, Waldspurger et al., 2015). What they miss and write
back is scaled by the number of sets: unbiased, and off by about 0.5 % (standard deviation) for a matmul of
8192 cubed. Scaling by the share of accesses sampled would be a little better there, but several times worse
where few lines get many of the accesses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from interlace.core.errors import CapacityError
from interlace.sim.runs import Boxes
from interlace.sim.stream import Ints

Tags = NDArray[np.uint32]

# A tag is twice the line's number, plus one if the line is dirty; this one is left for an empty way.
EMPTY = np.uint32(2**32 - 1)
DIRTY = np.uint32(1)
# Multiples of it, modulo 2^32, spread evenly over any stretch (2^32 over the golden ratio).
GOLDEN = 0x9E3779B1


@dataclass(frozen=True)
class LineTraffic:
    """What a stream of boxes cost, in lines and in bytes of DRAM traffic.

    Attributes:
        accesses, hits: lines accessed, and found in the cache.
        read_miss_bytes: read from DRAM, the compulsory part included.
        compulsory_bytes: of these, first accesses to their line, which no cache avoids.
        write_back_bytes: written to DRAM by evicting dirty lines.
        dirty_bytes: still dirty in the cache at the end; written to DRAM sooner or later.
    """

    accesses: int
    hits: int
    read_miss_bytes: int
    compulsory_bytes: int
    write_back_bytes: int
    dirty_bytes: int


@dataclass(frozen=True)
class LineCache:
    """A hashed set-associative cache.

    Attributes:
        l2_bytes: effective capacity, rounded down to whole sets. A fitted one need not be the one on the
            data sheet.
        ways: lines per set; fewer make the capacity softer.
        random_share: share of the sets that evict a random line, the others the least recently used one.
            It keeps some hits in a cyclic stream far above the capacity, as measured, where LRU has none.
        line_bytes: bytes per line.
    """

    l2_bytes: int
    ways: int
    random_share: float = 0.0
    line_bytes: int = 128

    def __post_init__(self) -> None:
        if self.ways < 1 or self.line_bytes < 1:
            raise CapacityError(f"cache has {self.ways} ways of {self.line_bytes} bytes; use positive numbers")
        if self.sets < 1:
            raise CapacityError(
                f"capacity is {self.l2_bytes} bytes, below one set of {self.ways} ways x {self.line_bytes} bytes; "
                "use fewer ways or a larger cache"
            )
        if not 0 <= self.random_share <= 1:
            raise CapacityError(f"random_share is {self.random_share}; use a share between 0 and 1")

    @property
    def sets(self) -> int:
        return self.l2_bytes // (self.ways * self.line_bytes)

    def run(self, boxes: Boxes, sample: int = 1, seed: int = 0) -> LineTraffic:
        """Traffic of a stream that finds the cache empty.

        Args:
            boxes: the stream.
            sample: simulate one set in so many and scale up.
            seed: picks the hash; the spread over seeds is the error of a sample.

        Raises:
            CapacityError: fewer sets than ``sample``.
        """
        simulated = self.sets // max(sample, 1)
        if sample < 1 or simulated < 1:
            raise CapacityError(f"sample is {sample}, but the cache has {self.sets} sets; use 1 to {self.sets}")
        counts = _run(
            boxes.first_line,
            boxes.rows,
            boxes.row_stride_lines,
            boxes.lines_per_row,
            boxes.write,
            np.full(simulated * self.ways, EMPTY),
            np.zeros(boxes.end_line, np.bool_),
            self.sets,
            self.ways,
            round(self.random_share * 2**32),
            seed * GOLDEN % 2**32,
        )
        scale = self.sets / simulated
        read_misses, compulsory, write_misses, write_backs, dirty = (round(scale * count) for count in counts)
        accesses = int(boxes.lines.sum())
        return LineTraffic(
            accesses,
            max(accesses - read_misses - write_misses, 0),
            read_misses * self.line_bytes,
            compulsory * self.line_bytes,
            write_backs * self.line_bytes,
            dirty * self.line_bytes,
        )


@njit(cache=True)
def _run(
    first_line: Ints,
    rows: Ints,
    row_stride_lines: Ints,
    lines_per_row: Ints,
    write: NDArray[np.bool_],
    tags: Tags,
    touched: NDArray[np.bool_],
    sets: int,
    ways: int,
    random_sets: int,
    hash_key: int,
) -> tuple[int, int, int, int, int]:
    """Read misses, compulsory ones, write misses, write-backs and lines left dirty, of the sets that ``tags``
    has room for. A set's tags stand most recently used first, empty ways last."""
    most = max((rows * lines_per_row).max(), 0) if len(rows) else 0
    lines = np.empty(most, np.uint32)
    set_of = np.empty(most, np.uint32)
    picked = np.empty(most + 1, np.int64)
    simulated = np.uint32(len(tags) // ways)
    misses = np.zeros(2, np.int64)  # of reads, of writes
    compulsory = 0
    write_backs = 0
    state = hash_key + GOLDEN
    key = np.uint32(hash_key)
    for box in range(len(rows)):
        dirty = np.uint32(write[box])
        _number_lines(lines, first_line[box], rows[box], row_stride_lines[box], lines_per_row[box])
        number = _pick(lines[: rows[box] * lines_per_row[box]], key, sets, simulated, set_of, picked)
        for i in range(number):
            line = lines[picked[i]]
            home = np.int64(set_of[picked[i]])
            mru = home * ways
            way = 0
            while way < ways and tags[mru + way] >> np.uint32(1) != line:
                way += 1
            if way < ways:
                tag = tags[mru + way] | dirty
            else:
                tag = line << np.uint32(1) | dirty
                misses[dirty] += 1
                if dirty == 0 and not touched[line]:
                    compulsory += 1
                touched[line] = True
                way = ways - 1
                if tags[mru + way] != EMPTY:
                    if home * GOLDEN % 2**32 < random_sets:
                        # xorshift64 (Marsaglia, 2003); its shift to the right brings in zeros
                        state ^= state << 13
                        state ^= state >> 7 & 2**57 - 1
                        state ^= state << 17
                        way = (state >> 32 & 2**31 - 1) * ways >> 31
                    if tags[mru + way] & DIRTY:
                        write_backs += 1
            for j in range(way, 0, -1):
                tags[mru + j] = tags[mru + j - 1]
            tags[mru] = tag
    left = 0
    for tag in tags:
        if tag != EMPTY and tag & DIRTY:
            left += 1
    return misses[0], compulsory, misses[1], write_backs, left


@njit(cache=True)
def _number_lines(lines: Tags, first: int, rows: int, stride: int, per_row: int) -> None:
    if per_row == 1:  # a K-chunk of one line: this loop runs as vectors, the general one would not
        for row in range(rows):
            lines[row] = np.uint32(first + row * stride)
        return
    i = 0
    for row in range(rows):
        for line in range(first + row * stride, first + row * stride + per_row):
            lines[i] = np.uint32(line)
            i += 1


@njit(cache=True)
def _pick(lines: Tags, key: np.uint32, sets: int, simulated: np.uint32, set_of: Tags, picked: Ints) -> int:
    """The set of each line, and which lines (by position) fall into a simulated set; returns how many.

    Two loops without branches: the first runs as vectors, and together they are several times faster than
    a test per line.
    """
    for i in range(len(lines)):
        # The finaliser of MurmurHash3 (Appleby): every bit of the line decides over every bit of the set.
        x = lines[i] ^ key
        x ^= x >> np.uint32(16)
        x = np.uint32(x * np.uint32(0x85EBCA6B))
        x ^= x >> np.uint32(13)
        x = np.uint32(x * np.uint32(0xC2B2AE35))
        x ^= x >> np.uint32(16)
        set_of[i] = np.uint32(np.uint64(x) * np.uint64(sets) >> np.uint64(32))
    number = 0
    for i in range(len(lines)):
        picked[number] = i
        if set_of[i] < simulated:
            number += 1
    return number
