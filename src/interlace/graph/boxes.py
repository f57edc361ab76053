"""Integer boxes: an index for intersection queries, and the merging of boxes that touch or overlap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, compute_offsets, find_distinct, iter_slices


class BoxIndex:
    """Index of integer boxes (at least one) that finds the boxes intersecting a query box.

    The index is a balanced binary tree, a bounding volume hierarchy. Every node halves its boxes along the dimension
    in which they are spread most and stores their bounding box. A query visits the nodes that it intersects and
    their children.

    Attributes:
        examined_boxes: number of boxes compared with queries so far.
    """

    def __init__(self, lo: Ints, hi: Ints) -> None:
        self.examined_boxes = 0
        n, rank = lo.shape
        depth = max(n - 1, 0).bit_length()
        self._order = np.arange(n, dtype=np.int64)
        for level in range(depth):
            self._order = self._order[_sort_by_spread(lo[self._order], hi[self._order], 1 << (depth - level))]
        # The padding boxes at the end intersect nothing.
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        lows, highs = np.full((1 << depth, rank), high), np.full((1 << depth, rank), low)
        lows[:n], highs[:n] = lo[self._order], hi[self._order]
        self._levels = [(lows, highs)]
        for _ in range(depth):
            lows, highs = np.minimum(lows[::2], lows[1::2]), np.maximum(highs[::2], highs[1::2])
            self._levels.append((lows, highs))

    def iter_intersections(self, lo: Ints, hi: Ints) -> Iterator[tuple[int, Groups]]:
        """Yield the boxes that each query box intersects, ascending, in slices of bounded memory.

        Each slice is (its first query box, its answers).
        """
        for a, b in iter_slices(len(lo), len(self._order)):
            query, node = np.arange(a, b, dtype=np.int64), np.zeros(b - a, np.int64)
            for level, (lows, highs) in enumerate(reversed(self._levels)):
                if level:
                    query, node = np.repeat(query, 2), (2 * node[:, None] + (0, 1)).reshape(-1)
                self.examined_boxes += len(query)
                met = intersects(lows[node], highs[node], lo[query], hi[query])
                query, node = query[met], node[met]
            box = self._order[node]
            yield a, Groups(compute_offsets(np.bincount(query - a, minlength=b - a)), box[np.lexsort((box, query))])


def _sort_by_spread(lo: Ints, hi: Ints, width: int) -> Ints:
    """Return an order that sorts each group of ``width`` boxes along the dimension in which it is spread most."""
    middle = lo // 2 + hi // 2
    part = np.arange(len(lo), dtype=np.int64) // width
    begins = np.arange(0, len(lo), width)
    spread = np.maximum.reduceat(middle, begins) - np.minimum.reduceat(middle, begins)
    along = np.take_along_axis(middle, spread.argmax(axis=1)[part, None], axis=1)[:, 0]
    order: Ints = np.lexsort((along, part)).astype(np.int64)
    return order


def intersects(lo: Ints, hi: Ints, other_lo: Ints, other_hi: Ints) -> NDArray[np.bool_]:
    """Return, row by row, True if the two boxes share an element."""
    common = np.maximum(lo, other_lo) < np.minimum(hi, other_hi)
    met: NDArray[np.bool_] = np.logical_and.reduce(common, axis=1)
    return met


def merge_boxes(lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Merge boxes that differ in one dimension and touch or overlap there; the result covers the same elements.

    The tiles of a grid become one box; boxes with gaps between them become one box per contiguous part.
    """
    some = (lo < hi).all(axis=1)
    lo, hi = lo[some], hi[some]
    rank, before = lo.shape[1], -1
    while len(lo) not in (before, 1, 0):
        before = len(lo)
        for d in reversed(range(rank)):
            others = [column[:, e] for e in range(rank) if e != d for column in (lo, hi)]
            _, cls = find_distinct(*others) if others else (None, np.zeros(len(lo), np.int64))
            order = np.lexsort((lo[:, d], cls))
            lo, hi, cls = lo[order], hi[order], cls[order]
            # Rank-compressed bounds, shifted apart by class, so that one running maximum serves all classes.
            cuts, number = np.unique(np.concatenate([lo[:, d], hi[:, d]]), return_inverse=True)
            begin, end = number[: len(lo)] + cls * len(cuts), number[len(lo) :] + cls * len(cuts)
            until = np.maximum.accumulate(end)
            new = np.r_[True, (begin[1:] > until[:-1]) | (cls[1:] != cls[:-1])]
            opens = np.flatnonzero(new)
            last = np.maximum.reduceat(hi[:, d], opens)
            lo, hi = lo[opens], hi[opens].copy()
            hi[:, d] = last
    return lo, hi
