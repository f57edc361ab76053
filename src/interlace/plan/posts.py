"""Semaphores that runs of tiles post, as ranges.

Consecutive tiles that post one semaphore form a *step*; steps whose semaphores are equally spaced form a *range*;
consecutive equal ranges form a *bundle*. With a grid of 3 x 4 tiles in row-major order,

    TileSync       0 1 2 3 4 5 6 7 8 9 10 11    one range: 12 semaphores from 0
    RowSync        0 0 0 0 1 1 1 1 2 2 2  2     one range: 3 semaphores from 0, each of four tiles
    ColumnSync     0 1 2 3 0 1 2 3 0 1 2  3     one bundle of three times 4 semaphores from 0

so that a tile needs as few ranges as the bundles that it meets, however many tiles it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.inverse import TileRuns
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges


@dataclass(frozen=True)
class PostedRanges:
    """Ragged rows (CSR) of ranges of semaphores, with the tiles that post them: row ``i`` holds ``ptr[i]:ptr[i + 1]``.

    Attributes:
        ptr: start of each row, and the end.
        first, count, stride: semaphores of each range, ascending; ``first`` is -1 for tiles that post none.
        tiles: tiles of each range, as one run, whose row is that of the range.
    """

    ptr: Ints
    first: Ints
    count: Ints
    stride: Ints
    tiles: TileRuns

    @property
    def last(self) -> Ints:
        """Highest semaphore of each range."""
        return self.first + (self.count - 1) * self.stride

    @property
    def sizes(self) -> Ints:
        """Number of ranges in each row."""
        return np.diff(self.ptr)

    def take(self, rows: Ints) -> PostedRanges:
        """Return the given rows, in the given order, possibly repeated."""
        taken = Groups(self.ptr, np.arange(len(self.first), dtype=np.int64)).take(rows)
        first, count, stride = (column[taken.values] for column in (self.first, self.count, self.stride))
        return PostedRanges(taken.ptr, first, count, stride, self.tiles.take(taken.values, taken.rows))


@dataclass(frozen=True)
class _Steps:
    """Steps, ranges and bundles of the tiles of all ops in one layout.

    Attributes:
        of_place: step of the tile at each position.
        begin: position of the first tile of each step, and the end.
        post: semaphore of each step.
        piece: range of each step.
        opens: first step of each range, and the end.
        bundle: bundle of each range.
        starts: first range of each bundle, and the end.
    """

    of_place: Ints
    begin: Ints
    post: Ints
    piece: Ints
    opens: Ints
    bundle: Ints
    starts: Ints


class PostIndex:
    """Semaphores that the tiles of a graph post.

    Attributes:
        of_tile: semaphore of each tile of the graph, -1 for none.
        threshold: number of tiles that post each semaphore.
    """

    def __init__(self, dependencies: Dependencies, of_tile: Ints) -> None:
        self._dependencies = dependencies
        self.of_tile = of_tile
        self.threshold = np.bincount(of_tile[of_tile >= 0], minlength=1).astype(np.int64)
        self._steps: dict[int, _Steps] = {}

    def find_ranges(self, runs: TileRuns, rows: int) -> PostedRanges:
        """Return the ranges that the tiles of each of ``rows`` rows of runs post; a range has a single threshold."""
        which, columns = [np.zeros(0, np.int64)], [np.zeros((0, 5), np.int64)]
        for layout, mine in runs.iter_layouts():
            steps = self._build_layout(layout)
            low, high = (steps.of_place[place] for place in (runs.first[mine], runs.last[mine]))
            # Split each run by bundle: the bundle's part of the run, from its first step to its last.
            run, bundle = _expand_spans(steps.bundle[steps.piece[low]], steps.bundle[steps.piece[high]])
            first, last = steps.starts[bundle], steps.starts[bundle + 1]
            low, high = np.maximum(low[run], steps.opens[first]), np.minimum(high[run], steps.opens[last] - 1)
            first, last = steps.piece[low], steps.piece[high]
            # A complete range in the part represents the whole part; otherwise the part is pieces of one or two ranges.
            whole = first + (low > steps.opens[first])
            some = whole <= last - (high < steps.opens[last + 1] - 1)
            part, piece = _expand_spans(np.where(some, whole, first), np.where(some, whole, last))
            run, some, low, high = run[part], some[part], low[part], high[part]
            a, b = np.maximum(low, steps.opens[piece]), np.minimum(high, steps.opens[piece + 1] - 1)
            low, high = np.where(some, low, a), np.where(some, high, b)
            begin = np.maximum(runs.first[mine][run], steps.begin[low])
            end = np.minimum(runs.last[mine][run] + 1, steps.begin[high + 1])
            count, (a, b) = b - a + 1, (steps.post[a], steps.post[b])
            stride = np.maximum(np.abs(b - a) // np.maximum(count - 1, 1), 1)
            which.append(mine[run])
            columns.append(np.stack([np.minimum(a, b), count, stride, begin, end - begin], axis=1))
        at, table = np.concatenate(which), np.concatenate(columns)
        order = np.argsort(at, kind="stable")
        at, (first, count, stride, place, number) = at[order], table[order].T
        row = runs.row[at]
        tiles = TileRuns(row, runs.source[at], runs.layout[at], place, number)
        return PostedRanges(compute_offsets(np.bincount(row, minlength=rows)), first, count, stride, tiles)

    def _build_layout(self, layout: int) -> _Steps:
        if layout not in self._steps:
            post = self.of_tile[self._dependencies.compute_layout(layout)]
            edge = np.zeros(len(post), bool)  # the first tile of an op
            edge[self._dependencies.base[:-1]] = True
            opens = edge | np.r_[True, post[1:] != post[:-1]]
            begin = np.flatnonzero(opens)
            step = post[begin]
            threshold = np.where(step >= 0, self.threshold[step], 0)
            apart = edge[begin][1:] | (threshold[1:] != threshold[:-1])
            breaks = np.r_[True, _find_breaks(step, apart)]
            piece = np.r_[np.flatnonzero(breaks), len(step)]
            first, last, size = step[piece[:-1]], step[piece[1:] - 1], np.diff(piece)
            other = np.diff(np.stack([first, last, size]), axis=1).any(axis=0) | edge[begin[piece[1:-1]]]
            other = np.r_[True, other]
            self._steps[layout] = _Steps(
                np.cumsum(opens) - 1,
                np.r_[begin, len(post)],
                step,
                np.cumsum(breaks) - 1,
                piece,
                np.cumsum(other) - 1,
                np.r_[np.flatnonzero(other), len(size)],
            )
        return self._steps[layout]


def _expand_spans(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """List the numbers from ``first`` to ``last`` of each row: (row, number)."""
    number = last - first + 1
    return np.repeat(np.arange(len(first), dtype=np.int64), number), expand_ranges(first, number)


def _find_breaks(values: Ints, apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return True between neighbours where a range ends: at ``apart``, or where a later value breaks the stride.

    The first two values of a range set its stride, so a break is at the third value or later. A value that breaks the
    stride opens a range whatever the distance to the next one. So of consecutive changes of distance, every other one
    is a break.
    """
    gap = np.diff(values)
    changes = np.r_[False, (gap[1:] != gap[:-1]) & ~apart[1:] & ~apart[:-1]][: len(gap)]
    at = np.arange(len(gap))
    since = at - np.maximum.accumulate(np.where(changes, -1, at))
    breaks: NDArray[np.bool_] = apart | (changes & (since % 2 == 1))
    return breaks
