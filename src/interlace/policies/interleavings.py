"""Interleavings: ways to merge the tile orders of several ops into one sequence.

Two chained ops of two row panels each (``u`` feeds ``d`` row by row):

    OpAfterOp()         u0 u0 u1 u1 | d0 d0 d1 d1
    RowPanels(1)           u0 u0 | d0 d0 | u1 u1 | d1 d1
    HalfRowPanels()          u0 | u0 d0 d0 | u1 | u1 d1 d1     (a split d0 starts after the first half)

Two ops that write parts of one tensor, of six tiles and of two, on six workers:

    OpAfterOp()         a0 a1 a2 a3 a4 a5 | b0 b1      both of b follow one of a
    Abreast(6)          a0 a1 a2 a3 b0 b1 | a4 a5      b begins at once

Panels and halves are defined in the producers' tile coordinates. A consumer joins the first group in which
everything that it waits for is complete, for any graph and policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from interlace.core.arguments import check_int
from interlace.core.errors import OrderError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.ragged import find_distinct, group_by
from interlace.policies.orders import check_permutation


@dataclass(frozen=True)
class OpMajorItems:
    """All items of a graph, op after op, each op's in its own order: the input of an interleaving.

    Attributes:
        op, tile, k_lo, k_hi: one entry per item.
    """

    op: Ints
    tile: Ints
    k_lo: Ints
    k_hi: Ints


class Interleaving(ABC):
    """Rule that merges the items of several ops into one sequence."""

    @abstractmethod
    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        """Return a permutation of the items: positions in ``parts`` in the order in which they run.

        Args:
            parts: items to rearrange.
            dependencies: dependencies of their graph.
            post: semaphore of every tile, with all ops' tiles numbered together, -1 for none.
        """

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class OpAfterOp(Interleaving):
    """All items of an op, then all of the next."""

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        return np.arange(len(parts.op), dtype=np.int64)


@dataclass(frozen=True)
class RowPanels(Interleaving):
    """``rows`` row panels of the first ops, then every item that they complete, and so on.

    ``lag`` delays consumers by that many groups, so that their producers have finished, not just begun, when a worker
    reaches them.
    """

    rows: int
    lag: int = 0

    def __post_init__(self) -> None:
        if check_int(self.rows, "RowPanels", "rows") < 1 or check_int(self.lag, "RowPanels", "lag") < 0:
            raise OrderError(f"RowPanels({self.rows}, lag={self.lag}); use rows >= 1 and lag >= 0")

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        def source(coords: Ints, grid: tuple[int, ...]) -> Ints:
            return coords[:, 0] // min(self.rows, grid[0])

        return _sort_by_group(parts, dependencies, post, source, self.lag)


@dataclass(frozen=True)
class HalfRowPanels(Interleaving):
    """Half a row panel of the first ops at a time, then every item that is complete."""

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        def source(coords: Ints, grid: tuple[int, ...]) -> Ints:
            return coords[:, 0] * 2 + (coords[:, -1] * 2 >= grid[-1])

        return _sort_by_group(parts, dependencies, post, source, 0)


@dataclass(frozen=True)
class Abreast(Interleaving):
    """``OpAfterOp``, but two ops that write parts of one tensor run beside each other on so many workers.

    If the second has fewer items than there are workers, and both together have more, its items go before the last ones
    of the first, so that each begins on a worker of its own. Use it where the first op's items load their data ahead,
    such as a KV cache, and the second's wait for theirs: what they wait for passes while others work. Ops with split
    tiles stay as they are, since parts that reduce a tile together follow one another.
    """

    workers: int

    def __post_init__(self) -> None:
        if check_int(self.workers, "Abreast", "workers") < 1:
            raise OrderError(f"Abreast({self.workers}); use at least one worker")

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        ops = dependencies.graph.ops
        by_op = group_by(parts.op, len(ops))
        items = [by_op[op] for op in range(len(ops))]
        for second in find_joint_writers(dependencies.graph):
            first = second - 1
            alone, both = self.workers - len(items[second]), len(items[first]) + len(items[second])
            before = {*parts.op[items[first]].tolist()}  # also the op before the first, if these run abreast
            waits = any(not before.isdisjoint(link.producers) for link in dependencies.find_links(second))
            is_split = any(len(by_op[op]) > ops[op].tiles for op in (*before, second))
            if not waits and not is_split and alone > 0 and both > self.workers:
                early, late = np.split(items[first], [alone])
                items[first], items[second] = early, np.concatenate([items[second], late])
        return np.concatenate(items)


def find_joint_writers(graph: Graph) -> list[int]:
    """Return the positions of the ops that write a tensor which the op before them writes, too."""
    written = [{access.tensor for access in op.writes} for op in graph.ops]
    return [n for n in range(1, len(written)) if written[n - 1] & written[n]]


@dataclass(frozen=True)
class ExplicitInterleaving(Interleaving):
    """Items in a given order, as positions among all items listed op after op."""

    positions: tuple[int, ...]

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        return check_permutation(self.positions, len(parts.op), "the graph's items")


def _sort_by_group(
    parts: OpMajorItems,
    dependencies: Dependencies,
    post: Ints,
    source: Callable[[Ints, tuple[int, ...]], Ints],
    lag: int,
) -> Ints:
    """Order items by group: ``source(coords, grid)`` of the first ops' items, the latest awaited group of others."""
    graph = dependencies.graph
    base = dependencies.base
    tile_group = np.zeros(base[-1], np.int64)
    group = np.zeros(len(parts.op), np.int64)
    shared = np.zeros(post.max(initial=0) + 1, np.int64)  # latest group of each semaphore's tiles, all of one op
    of_op = group_by(parts.op, len(graph.ops))
    for c, op in enumerate(graph.ops):
        mine = of_op[c]
        coords = op.compute_coords(parts.tile[mine])
        links = dependencies.find_links(c)
        if links:
            ready = np.zeros(len(mine), np.int64)
            for link in links:
                shape = graph.tensor(link.tensor).shape
                lo, hi = link.target.compute_bounds(shape, coords, parts.k_lo[mine], parts.k_hi[mine])
                first, box = find_distinct(*lo.T, *hi.T)
                latest = np.zeros(len(first), np.int64)
                for start, _, runs in dependencies.iter_runs(link, lo[first], hi[first]):
                    np.maximum.at(latest, runs.row + start, dependencies.fold(np.maximum, tile_group, runs))
                ready = np.maximum(ready, latest[box])
            group[mine] = ready + lag
        else:
            group[mine] = source(coords, op.grid)
        np.maximum.at(tile_group, base[c] + parts.tile[mine], group[mine])
        # A tile is as late as the last one that shares its semaphore, because a wait is for all of them.
        tiles = slice(base[c], base[c + 1])
        np.maximum.at(shared, post[tiles][post[tiles] >= 0], tile_group[tiles][post[tiles] >= 0])
        tile_group[tiles] = np.where(post[tiles] >= 0, shared[post[tiles]], tile_group[tiles])
    order: Ints = np.lexsort((np.arange(len(group)), parts.op, group)).astype(np.int64)
    return order
