"""Ragged rows (CSR) and strided ranges of integers as flat arrays, with reductions that avoid listing every entry.

sizes      2  0  3
offsets    0  2  2  5
ranges     of first 7, -, 1 and stride 1:  7 8 | | 1 2 3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints

BATCH_ENTRIES = 1 << 20  # maximum number of entries processed at once, which bounds memory


@dataclass(frozen=True)
class Groups:
    """Ragged rows in CSR form: row ``i`` holds ``values[ptr[i]:ptr[i + 1]]``."""

    ptr: Ints
    values: Ints

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.ptr[row] : self.ptr[row + 1]]

    @property
    def sizes(self) -> Ints:
        """Length of each row."""
        return self.ptr[1:] - self.ptr[:-1]

    @property
    def rows(self) -> Ints:
        """Row of each value."""
        return np.arange(len(self), dtype=np.int64).repeat(self.sizes)

    def take(self, rows: Ints) -> Groups:
        """Return the given rows, in the given order, possibly repeated."""
        sizes = self.sizes[rows]
        return Groups(compute_offsets(sizes), self.values[expand_ranges(self.ptr[rows], sizes)])


def group_by(row: Ints, rows: int) -> Groups:
    """Group the positions in ``row`` by their entry, one of 0 .. ``rows``; positions ascend in each group."""
    return Groups(compute_offsets(np.bincount(row, minlength=rows)), row.argsort(kind="stable").astype(np.int64))


def compute_offsets(sizes: Ints) -> Ints:
    """Return the exclusive prefix sum ``[0, s0, s0 + s1, ...]``: the start of each ragged row, and the end."""
    out = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=out[1:])
    return out


def expand_ranges(first: Ints, sizes: Ints, stride: Ints | int = 1) -> Ints:
    """Return the concatenation of ``first[i] + stride[i] * (0 .. sizes[i])``."""
    ptr = compute_offsets(sizes)
    step = np.arange(ptr[-1], dtype=np.int64) - ptr[:-1].repeat(sizes)
    return first.repeat(sizes) + step * (stride if isinstance(stride, int) else stride.repeat(sizes))


def find_distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Find the distinct rows of parallel integer columns: (index of a first occurrence, class of each row).

    Classes are numbered in sorted order of the rows. The columns are packed into one key while it stays below 2^62.
    """
    key, extent = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = int(np.minimum.reduce(column, initial=0)), int(np.maximum.reduce(column, initial=0))
        if low == high:
            continue
        if (high - low + 1) * extent >= 1 << 62:
            _, key = np.unique(key, return_inverse=True)
            values, column = np.unique(column, return_inverse=True)
            extent, low, high = len(key), 0, len(values) - 1
        key = key * (high - low + 1) + (column - low)
        extent *= high - low + 1
    # Same result as np.unique, at half the cost for few rows.
    order = key.argsort(kind="stable")
    opens = np.ones(len(key), bool)
    np.not_equal(key[order[1:]], key[order[:-1]], out=opens[1:])
    cls = np.empty(len(key), np.int64)
    cls[order] = opens.cumsum() - 1
    return order[opens].astype(np.int64, copy=False), cls


def iter_batches(size: Ints) -> Iterator[tuple[int, int]]:
    """Yield slices ``a:b`` of rows of these sizes, each with at most ``BATCH_ENTRIES`` entries or of a single row."""
    total = compute_offsets(size)
    a = 0
    while a < len(size):
        b = max(a + 1, int(np.searchsorted(total, total[a] + BATCH_ENTRIES, side="right")) - 1)
        yield a, b
        a = b


def iter_slices(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Return slices ``a:b`` of rows of ``width`` entries: at most ``BATCH_ENTRIES`` entries each, or one row."""
    some = max(1, BATCH_ENTRIES // width)
    return ((a, min(a + some, rows)) for a in range(0, rows, some))


def fold(ufunc: np.ufunc, values: Ints, first: Ints, count: Ints, stride: Ints | int) -> Ints:
    """Reduce ``values[first + stride * (0 .. count)]`` for each range (at least one value) with minimum or maximum.

    Ranges of one stride are grouped. If they overlap enough (more than twice as many entries as the stretch of values
    that they lie in), they are answered from sparse tables over 2, 4, 8, ... entries (range minimum query), each of
    which costs as much as that stretch. Other ranges are listed.
    """
    out = np.empty(len(first), np.int64)
    if not len(first):
        return out
    stride = np.where(count > 1, stride, 1)
    steps, cls = np.unique(stride, return_inverse=True)
    by_step = group_by(cls, len(steps))
    last = first + (count - 1) * stride
    begin = np.minimum.reduceat(first[by_step.values], by_step.ptr[:-1])
    end = np.maximum.reduceat(last[by_step.values], by_step.ptr[:-1]) + 1
    overlap = np.add.reduceat(count[by_step.values], by_step.ptr[:-1]) > 2 * (end - begin)
    listed = np.flatnonzero(~overlap[cls])
    for a, b in iter_batches(count[listed]):
        some = listed[a:b]
        found = values[expand_ranges(first[some], count[some], stride[some])]
        out[some] = ufunc.reduceat(found, compute_offsets(count[some])[:-1])
    for group in np.flatnonzero(overlap).tolist():
        some, step, origin = by_step[group], int(steps[group]), int(begin[group])
        level = np.frexp(count[some].astype(np.float64))[1] - 1  # log2 of the largest power of two up to the count
        table, reach = values[origin : end[group]], step
        for n in range(int(level.max()) + 1):
            at = some[level == n]
            out[at] = ufunc(table[first[at] - origin], table[last[at] - origin - reach + step])
            table, reach = ufunc(table[:-reach], table[reach:]), 2 * reach
    return out


def mark_covered(first: Ints, count: Ints, stride: Ints, numbers: int) -> NDArray[np.bool_]:
    """Return a mask of ``0 .. numbers`` that the ranges (strides above 0) hold; overlapping ranges are merged first."""
    out = np.zeros(numbers, bool)
    if len(first):
        stride = np.where(count > 1, stride, 1)
        rest = first % stride
        _, cls = find_distinct(stride, rest)
        # Ranges as intervals within their residue class; classes are shifted far apart.
        begin = first // stride + cls * (numbers + 1)
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate((begin + count)[order])
        opens = np.flatnonzero(np.r_[True, begin[1:] > end[:-1]])
        stride, rest, cls = stride[order][opens], rest[order][opens], cls[order][opens]
        size = np.maximum.reduceat(end, opens) - begin[opens]
        first = (begin[opens] - cls * (numbers + 1)) * stride + rest
        for a, b in iter_batches(size):
            out[expand_ranges(first[a:b], size[a:b], stride[a:b])] = True
    return out
