"""Direct dependencies between accesses: program order over regions of tensors.

An access depends on the last access that wrote an element before it. If it writes, it also depends on the accesses
that have read the element since. Earlier accesses are ordered through these, element by element. With a cache of four
rows,

    op         reads       writes      depends on
    fill                   rows 0:4
    append                 row  2      fill (WAW)
    attend     rows 0:4                fill (RAW), append (RAW)
    update     row  2      row  2      append (RAW, WAW), attend (WAR)
    attend2    rows 0:4                fill (RAW), update (RAW)

Space is bisected until each access touches all of a part or nothing of it. Where several consecutive accesses touch
all of a part and one of them writes, the dependencies between the first and the last write are resolved for the whole
part. Only accesses before the first write and after the last one are passed on to smaller parts. So n ops that each
update part of a tensor cost about n log n, and n ops that read what n others wrote cost in proportion to the number of
their dependencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import find_distinct

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AccessBoxes:
    """Boxes that accesses touch, ordered by ``event``.

    Attributes:
        space: tensor of each box; boxes of different tensors never intersect.
        event: number of the access; a higher number is later.
        writes: True if the access writes.
        lo, hi: bounds, shape (n, rank); no box is empty.
    """

    space: Ints
    event: Ints
    writes: Bools
    lo: Ints
    hi: Ints


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        source, target: distinct pairs of accesses; the target depends on the source.
        unwritten: reads of elements that nothing wrote before, as boxes: (event, space, lo, hi).
        examined_boxes: number of boxes examined, in all parts.
    """

    source: Ints
    target: Ints
    unwritten: tuple[Ints, Ints, Ints, Ints]
    examined_boxes: int


@dataclass(frozen=True)
class _Entries:
    """Boxes in parts of space, ordered by part, then by time.

    The writes of a resolved stretch become one entry. Its ``head``, the first write, depends on earlier entries; later
    entries depend on its ``tail``, the last write.
    """

    part: Ints
    head: Ints
    tail: Ints
    writes: Bools
    lo: Ints
    hi: Ints

    def take(self, which: Ints | Bools) -> _Entries:
        part, head, tail = (column[which] for column in (self.part, self.head, self.tail))
        return _Entries(part, head, tail, self.writes[which], self.lo[which], self.hi[which])


def sweep(touched: AccessBoxes) -> SweepResult:
    """Find all direct dependencies between accesses, and all reads of elements that nothing wrote."""
    none = np.zeros(0, np.int64)
    pairs, unwritten = [np.zeros((0, 2), np.int64)], [(none, none, touched.lo[:0], touched.hi[:0])]
    looked_at = 0
    order = np.lexsort((touched.event, touched.space))
    first, part = find_distinct(touched.space[order])
    space, event = touched.space[order][first], touched.event[order]
    entries = _Entries(part, event, event, touched.writes[order], touched.lo[order], touched.hi[order])
    lo, hi = np.minimum.reduceat(entries.lo, first, axis=0), np.maximum.reduceat(entries.hi, first, axis=0)
    while len(entries.part):
        looked_at += len(entries.part)
        whole = np.logical_and.reduce((entries.lo <= lo[entries.part]) & (entries.hi >= hi[entries.part]), axis=1)
        found, missing, rest = _resolve(entries, whole)
        pairs.append(found)
        at = entries.part[missing]
        unwritten.append((entries.head[missing], space[at], lo[at], hi[at]))
        entries, cut, lo, hi = _halve(rest, lo, hi)
        space = np.repeat(space[cut], 2)
    pair = np.concatenate(pairs)
    which, _ = find_distinct(pair[:, 0], pair[:, 1])
    head, of, low, high = (np.concatenate(columns) for columns in zip(*unwritten, strict=True))
    return SweepResult(pair[which, 0], pair[which, 1], (head, of, low, high), looked_at)


def _resolve(entries: _Entries, whole: Bools) -> tuple[Ints, Ints, _Entries]:
    """Resolve parts: (pairs of accesses found, reads of unwritten elements, entries left for smaller parts).

    Entries that are neighbours in time and touch all of a part form a *stretch*. Within a stretch, each access has the
    same predecessor everywhere in the part.
    """
    opens = np.r_[True, entries.part[1:] != entries.part[:-1]]
    breaks = opens | ~whole | ~np.r_[False, whole[:-1]]
    before, after = _find_neighbours(entries.writes, opens)  # within the part
    close_before, close_after = _find_neighbours(entries.writes & whole, breaks)  # within the stretch
    after_write = np.flatnonzero(whole & (close_before >= 0))
    overwritten = np.flatnonzero(whole & ~entries.writes & (close_after >= 0))
    pairs = np.concatenate(
        [
            np.stack([entries.tail[close_before[after_write]], entries.head[after_write]], axis=1),
            np.stack([entries.head[overwritten], entries.head[close_after[overwritten]]], axis=1),
        ]
    )
    missing = np.flatnonzero(whole & ~entries.writes & (before < 0))
    # The first write of a stretch stays and represents all up to the last one.
    stretch = np.cumsum(breaks) - 1
    last = np.full(int(stretch[-1]) + 1, -1, np.int64)
    written = np.flatnonzero(entries.writes)
    last[stretch[written]] = written
    tail = np.where(entries.writes, entries.tail[last[stretch]], entries.tail)
    open_part = np.zeros(int(entries.part[-1]) + 1, bool)
    open_part[entries.part[~whole]] = True
    needed = np.where(
        entries.writes,
        close_before < 0,
        ((close_before < 0) & (before >= 0)) | ((close_after < 0) & (after >= 0)),
    )
    keep = open_part[entries.part] & (~whole | needed)
    left = _Entries(entries.part, entries.head, tail, entries.writes, entries.lo, entries.hi).take(keep)
    return pairs, missing, left


def _find_neighbours(marked: Bools, opens: Bools) -> tuple[Ints, Ints]:
    """Return the marked positions before and after each position (-1: none), in groups that begin at ``opens``."""
    n = len(marked)
    at = np.arange(n, dtype=np.int64)
    first = np.maximum.accumulate(np.where(opens, at, 0))
    closes = np.r_[opens[1:], True]
    last = np.minimum.accumulate(np.where(closes, at, n)[::-1])[::-1]
    before = np.r_[-1, np.maximum.accumulate(np.where(marked, at, -1))[:-1]]
    after = np.r_[np.minimum.accumulate(np.where(marked, at, n)[::-1])[::-1][1:], n]
    return np.where(before >= first, before, -1), np.where(after <= last, after, -1)


def _halve(entries: _Entries, lo: Ints, hi: Ints) -> tuple[_Entries, Ints, Ints, Ints]:
    """Bisect the parts: (entries by half, the parts that were bisected, lower and upper bounds of the halves).

    The halves of the i-th bisected part have numbers 2 i and 2 i + 1. A part is cut at the median of the box faces
    inside it, along the dimension with the most faces.
    """
    inside = [(entries.lo > lo[entries.part], entries.lo), (entries.hi < hi[entries.part], entries.hi)]
    faces = [(np.nonzero(strictly), bound) for strictly, bound in inside]
    part = np.concatenate([entries.part[at] for (at, _), _ in faces])
    axis = np.concatenate([d for (_, d), _ in faces])
    place = np.concatenate([bound[at, d] for (at, d), bound in faces])
    each, _ = find_distinct(part, axis, place)
    part, axis, place = part[each], axis[each], place[each]
    opens = np.flatnonzero(np.r_[True, (part[1:] != part[:-1]) | (axis[1:] != axis[:-1])][: len(part)])
    number = np.diff(np.r_[opens, len(part)])
    most = np.lexsort((number, part[opens]))
    most = most[np.r_[part[opens[most]][1:] != part[opens[most]][:-1], True][: len(most)]]
    cut_part, cut_axis = part[opens[most]], axis[opens[most]]
    cut = place[opens[most] + number[most] // 2]
    lo, hi = np.repeat(lo[cut_part], 2, axis=0), np.repeat(hi[cut_part], 2, axis=0)
    each = np.arange(len(cut_part))
    hi[2 * each, cut_axis], lo[2 * each + 1, cut_axis] = cut, cut
    number = np.searchsorted(cut_part, entries.part)
    along, at = cut_axis[number], np.arange(len(number))
    sides = []
    for side, touches in enumerate((entries.lo[at, along] < cut[number], entries.hi[at, along] > cut[number])):
        some = entries.take(touches)
        new = 2 * number[touches] + side
        sides.append((new, some))
    part = np.concatenate([new for new, _ in sides])
    order = np.argsort(part, kind="stable")
    heads, tails, writes, lows, highs = (
        np.concatenate([getattr(some, name) for _, some in sides])[order]
        for name in ("head", "tail", "writes", "lo", "hi")
    )
    part = part[order].astype(np.int64)
    halves = _Entries(part, heads, tails, writes, np.maximum(lows, lo[part]), np.minimum(highs, hi[part]))
    return halves, cut_part, lo, hi
