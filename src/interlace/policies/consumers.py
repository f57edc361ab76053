"""Consumers of each tile, hashed to one number: tiles of one op with equal numbers are needed by the same items.

This is an additive set hash. Every box that items touch gets a random number, and each tile sums the numbers of the
boxes that depend on it. Where ``d`` reads the outputs of ``u`` in panels of two tiles, and ``e`` reads four of its six
tiles:

    tiles of u        0    1    2    3    4    5
    boxes of d        a    a    b    b    c    c
    box of e          e    e    e    e
    sum              a+e  a+e  b+e  b+e   c    c

Two different sets have equal sums with a probability of 2^-64; they then share a semaphore that waits for both.

Items that start after *all* tiles of an op in any case need not distinguish them, so their boxes of that op add
nothing. In a chain a -> b -> c where each tile of ``b`` reads all of ``a``, a tile of ``c`` that reads a block of
``a`` besides its input from ``b`` may as well wait for all of ``a``. This is decided for whole ops. ``c`` is after all
of ``a`` if each of its items needs one of these: every tile of ``a``; some tile of an op that is after all of ``a``;
every tile of an op whose tiles together need all of ``a``.

Tiles that are read are also not distinguished by the items that overwrite the tiles' own inputs, if nothing waits for
those items. The append to a cache may then run a little later, and the tiles of attention stay grouped by the product
that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import or_

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.inverse import TileRuns
from interlace.graph.ragged import expand_ranges, find_distinct, group_by
from interlace.policies.interleavings import OpMajorItems


@dataclass(frozen=True, eq=False)
class Consumers:
    """Items that need the tiles of a graph.

    Attributes:
        dependencies: dependencies of the graph.
        parts: items of the graph.
        by_chunk: True if items wait before the chunk of their reduction that needs a tile, not at their start.
    """

    dependencies: Dependencies
    parts: OpMajorItems
    by_chunk: bool = False

    @cached_property
    def tile_hashes(self) -> Ints:
        """Hash of the consumers of each tile of the graph."""
        read, overwritten = _TileSums(self.dependencies), _TileSums(self.dependencies)
        awaited = {producer for link in self.dependencies.links for producer in link.producers}
        draw = np.random.default_rng(0)
        behind: list[int] = []
        ended: list[int] = []
        of_op = group_by(self.parts.op, len(self.dependencies.graph.ops))
        for op in range(len(of_op)):
            touched = [_NeededTiles.for_items(self, link, of_op[op]) for link in self.dependencies.find_links(op)]
            start = _find_ended([some for some in touched if not self.waits_by_chunk(some.link)], behind, ended)
            behind.append(start | self._find_ended_before_tiles(op, of_op[op], touched, behind, ended))
            ended.append(behind[op] | _unite_bits(1 << p | ended[p] for some in touched for p in some.together))
            for some in touched:
                numbers = draw.integers(-(1 << 63), 1 << 63, some.boxes, np.int64)
                alike = [producer for producer in some.link.producers if start >> producer & 1]
                sums = read if op in awaited or some.link.hazard is Hazard.RAW else overwritten
                sums.add(some.runs.take(~np.isin(some.producer, alike)), numbers)
                sums.uniform_ops.update(alike)
        is_read = np.repeat(np.isin(np.arange(len(of_op)), [*read.uniform_ops]), np.diff(self.dependencies.base))
        return np.where(is_read | (read.totals != 0), read.totals, overwritten.totals)

    def waits_by_chunk(self, link: Link) -> bool:
        """Return True if items wait chunk by chunk for what they need through the link."""
        return self.by_chunk and link.target.uses_k

    def _find_ended_before_tiles(
        self, op: int, mine: Ints, touched: Sequence[_NeededTiles], behind: Sequence[int], ended: Sequence[int]
    ) -> int:
        """Return the ops, as bits, that whole tiles come after, if tiles are split or wait chunk by chunk."""
        extent = self.dependencies.graph.ops[op].k_extent
        moving = [some for some in touched if some.link.target.uses_k]
        split = bool((self.parts.k_hi[mine] - self.parts.k_lo[mine] < extent).any())
        if not moving or not (split or self.by_chunk):
            return 0
        tile = self.parts.tile[mine]
        whole = OpMajorItems(self.parts.op[mine], tile, np.zeros_like(tile), np.full_like(tile, extent))
        at_once = Consumers(self.dependencies, whole)
        return _find_ended(
            [_NeededTiles.for_items(at_once, some.link, np.arange(len(tile))) for some in moving], behind, ended
        )


class _TileSums:
    """Sum per tile of numbers that are added to runs of tiles, as a difference array for each layout.

    Attributes:
        uniform_ops: ops whose tiles would all get the same addends, so that none are added.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.uniform_ops: set[int] = set()
        self._order, self._tiles = dependencies.compute_layout, int(dependencies.base[-1])
        self._steps: dict[int, Ints] = {}  # difference array by layout

    def add(self, runs: TileRuns, numbers: Ints) -> None:
        """Add to each run the number of its row; sums wrap."""
        for layout, which in runs.iter_layouts():
            step = self._steps.setdefault(layout, np.zeros(self._tiles + 1, np.int64))
            np.add.at(step, runs.first[which], numbers[runs.row[which]])
            np.subtract.at(step, runs.last[which] + 1, numbers[runs.row[which]])

    @cached_property
    def totals(self) -> Ints:
        """Sum of each tile of the graph."""
        out = np.zeros(self._tiles, np.int64)
        for layout, step in self._steps.items():
            out[self._order(layout)] += np.cumsum(step[:-1])
        return out


@dataclass(frozen=True)
class _NeededTiles:
    """Tiles that an op's items need through a link.

    Attributes:
        link: the link.
        boxes: number of distinct boxes that the items touch.
        runs: tiles that each box depends on; the row of a run is its box.
        producer: op of each run.
        some, every: ops of which each box depends on some tile, and on all tiles.
        together: ops of which all boxes together depend on all tiles.
    """

    link: Link
    boxes: int
    runs: TileRuns
    producer: Ints
    some: list[int]
    every: list[int]
    together: list[int]

    @staticmethod
    def for_items(consumers: Consumers, link: Link, items: Ints) -> _NeededTiles:
        """Find the tiles that the given items need, all of one op."""
        dependencies = consumers.dependencies
        lo, hi = _find_boxes(consumers, link, items)
        found = [replace(runs, row=runs.row + a) for a, _, runs in dependencies.iter_runs(link, lo, hi)]
        runs = TileRuns(*(np.concatenate([getattr(some, f.name) for some in found]) for f in fields(TileRuns)))
        producer = np.searchsorted(dependencies.base, runs.first, side="right") - 1
        # Per (box, access): True if all tiles of the access's op are needed. Then the number of such boxes per access.
        first, pair = find_distinct(runs.row, runs.source)
        access, of_op = runs.source[first], producer[first]
        whole = np.bincount(pair, runs.count) == np.diff(dependencies.base)[of_op]
        some, every = np.bincount(access), np.bincount(access, whole)
        op = np.zeros(len(some), np.int64)
        op[access] = of_op
        covered = np.zeros(len(dependencies.base) - 1, bool)
        for _, which in runs.iter_layouts():
            which = which[np.argsort(runs.first[which], kind="stable")]
            end = np.maximum.accumulate(runs.last[which] + 1)
            new = end - np.maximum(runs.first[which], np.r_[0, end[:-1]])  # positions that no earlier run covers
            covered |= np.bincount(producer[which], np.maximum(new, 0), len(covered)) == np.diff(dependencies.base)
        every_op, some_ops = op[every == len(lo)].tolist(), op[some == len(lo)].tolist()
        return _NeededTiles(link, len(lo), runs, producer, some_ops, every_op, np.flatnonzero(covered).tolist())


def _find_ended(touched: Sequence[_NeededTiles], behind: Sequence[int], ended: Sequence[int]) -> int:
    """Return the ops, as bits, that have ended before any item of an op begins.

    Args:
        touched: tiles that the op's items need.
        behind, ended: for each earlier op, the ops that have ended before any of its tiles has, and before all have.
    """
    after_any = _unite_bits(behind[op] for through in touched for op in through.some)
    return after_any | _unite_bits(1 << op | ended[op] for through in touched for op in through.every)


def _unite_bits(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _find_boxes(consumers: Consumers, link: Link, items: Ints) -> tuple[Ints, Ints]:
    """Return the distinct boxes that waits are for: those that items touch, for late items up to each chunk's end."""
    graph, parts = consumers.dependencies.graph, consumers.parts
    op, target = graph.ops[link.consumer], link.target
    coords, k_lo, k_hi = op.compute_coords(parts.tile[items]), parts.k_lo[items], parts.k_hi[items]
    if consumers.waits_by_chunk(link) and op.reduction:
        bounds = [bound for span in target.spans for bound in (span.lo, span.hi)]
        moves = np.array([[*b.tile, *[0] * (len(op.grid) - len(b.tile))] for b in bounds], bool).any(axis=0)
        alike, _ = find_distinct(k_lo, k_hi, *coords[:, moves].T)  # the other coordinates do not move the box
        block, chunks = op.reduction.block, -(-(k_hi - k_lo)[alike] // op.reduction.block)
        item = np.repeat(alike, chunks)
        until = k_lo[item] + expand_ranges(np.full_like(chunks, block), chunks, block)
        coords, k_lo, k_hi = coords[item], k_lo[item], np.minimum(until, k_hi[item])
    lo, hi = target.compute_bounds(graph.tensor(link.tensor).shape, coords, k_lo, k_hi)
    first, _ = find_distinct(*lo.T, *hi.T)
    return lo[first], hi[first]
