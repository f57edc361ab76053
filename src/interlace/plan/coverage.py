"""Coverage: the check that every dependency is enforced, by a wait or by the order of one worker.

Items are examined in *segments*, the stretches between two waits. An item with waits at k = 0, 0, 128 and
k-range [0, 512) has two segments: [0, 128) after two waits and [128, 512) after three. Segments that touch the
same box after the same waits are one *case*. Cases that differ only in waits for other semaphores are decided
together: an op of n tiles that each read all n tiles of another takes memory of order n, not n * n.

Worked example, ``up`` of 2 x 3 tiles under RowSync, and tile (1, 0) of ``down``, which reads row 1 of ``hidden``:

    the box it reads       hidden[16:32, 0:96]
    tiles that write it    3, 4, 5 of ``up``: one run of tiles (``graph/inverse``)
    semaphores they post   1, 1, 1: one range of semaphores (``posts``)
    semaphores it awaits   1, before k = 0 (``awaited``): this range contains the other, so all three dependencies are
                           enforced by a wait. ``verify`` has checked that the wait is for three posts

Without that wait the run is checked against worker order: does one worker run tiles 3, 4 and 5 before the item? If
not, the error names the first tile for which this fails.

The order before an overwrite (WAR or WAW) can also follow from the waits of other items (``implied``).

A box needs runs of tiles, and so ranges of semaphores. A range that one wait contains, or a run that one worker
completes before the item, is never listed; only ranges that several waits contain together are checked tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import CoverageError, FaultLocation
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.inverse import TileRuns
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges, find_distinct, group_by, iter_batches
from interlace.graph.tensor import Region
from interlace.plan.awaited import AwaitedRanges
from interlace.plan.facts import PlanIndex
from interlace.plan.implied import ImpliedOrder
from interlace.plan.orderings import Edge, Ordering
from interlace.plan.plan import Dispatch
from interlace.plan.posts import PostedRanges, PostIndex

_SPAN = 1 << 31  # more than any k, so that item * _SPAN + k orders by item, then k
_MAX_LISTED = 4  # maximum number of semaphores in a message


@dataclass(frozen=True)
class Coverage:
    """Orderings that enforce the dependencies of a plan.

    Attributes:
        edges: number of dependencies.
        by_wait: number of dependencies that a wait enforces; the rest follow from a worker's order.
        rests_on: each ordering that enforces dependencies, with one of these.
    """

    edges: int
    by_wait: int
    rests_on: tuple[tuple[Ordering, Edge], ...]


def check_coverage(facts: PlanIndex, dependencies: Dependencies) -> Coverage:
    """Check that every dependency is enforced.

    Returns:
        The orderings that enforce them.

    Raises:
        CoverageError: a dependency that nothing enforces; names its items and the missing wait.
    """
    order = _WorkerOrder(facts, dependencies)
    posts = PostIndex(dependencies, facts.post_of_tile)
    examples: dict[Ordering, Edge] = {}
    implied = cache(lambda: ImpliedOrder(facts.plan.items, facts.plan.waits, facts.post_of_tile, facts.base))
    edges = by_wait = 0
    for consumer in range(len(facts.plan.graph.ops)):
        links = dependencies.find_links(consumer)
        if not links:
            continue
        segments = _Segments(facts, consumer)
        for link in links:
            check = _LinkCheck(facts, dependencies, posts, order, segments, link, examples, implied)
            check.run()
            edges += check.edges
            by_wait += check.by_wait
    return Coverage(edges, by_wait, tuple(examples.items()))


class _Segments:
    """Segments (stretches between two waits) of the items of one op, ordered by item, then k.

    Attributes:
        item, k_lo, k_hi: item and k-range of each segment.
        opening: True if the segment is the first of its item.
        wait_end: end of the waits before the segment; they are the item's rows up to this one.
        prefix: class of each segment, equal exactly for segments after the same waits.
    """

    def __init__(self, facts: PlanIndex, op: int) -> None:
        items, waits = facts.plan.items, facts.plan.waits
        mine = facts.of_op[op]
        rows = Groups(waits.ptr, np.arange(len(waits), dtype=np.int64)).take(mine)
        owner = mine[rows.rows]
        row_key = owner * _SPAN + np.maximum(waits.k[rows.values], items.k_lo[owner])
        key = np.unique(np.concatenate([mine * _SPAN + items.k_lo[mine], row_key]))
        self.item, self.k_lo = key // _SPAN, key % _SPAN
        self.opening = np.r_[True, self.item[1:] != self.item[:-1]]
        closing = np.r_[self.opening[1:], True]
        self.k_hi = np.where(closing, items.k_hi[self.item], np.r_[self.k_lo[1:], 0])
        before = np.searchsorted(row_key, key, side="right").astype(np.int64)
        depth = before - rows.ptr[np.cumsum(self.opening) - 1]
        self.wait_end = waits.ptr[self.item] + depth
        node = _number_prefixes(Groups(rows.ptr, facts.wait_class[rows.values]))
        self.prefix = np.where(depth > 0, np.r_[0, node][before], 0)


class _WorkerOrder:
    """Dependencies that one worker's own order enforces."""

    def __init__(self, facts: PlanIndex, dependencies: Dependencies) -> None:
        plan, parts = facts.plan, facts.parts
        self.dependencies = dependencies
        #: Worker of each item, and of each tile if one worker runs all its parts, else -1.
        static = plan.dispatch is Dispatch.STATIC
        self.worker = plan.items.worker if static else np.zeros_like(plan.items.worker)
        of_part = self.worker[parts.values]
        lowest = np.minimum.reduceat(of_part, parts.ptr[:-1])
        highest = np.maximum.reduceat(of_part, parts.ptr[:-1])
        self.tile_worker = np.where(lowest == highest, lowest, -1)
        overtaking = plan.dispatch.can_reorder or plan.dispatch is Dispatch.SPAWN or (not static and plan.workers > 1)
        if overtaking:
            self.tile_worker[:] = -1
        #: Position of each tile's last part in the sequence.
        self.tile_last = np.maximum.reduceat(parts.values, parts.ptr[:-1])

    def enforces(self, tiles: TileRuns, items: Groups) -> NDArray[np.bool_]:
        """Return True for each run whose tiles one worker runs before all items (at least one) of the run's row."""
        opens = items.ptr[:-1]
        of_item = self.worker[items.values]
        lowest, highest = np.minimum.reduceat(of_item, opens), np.maximum.reduceat(of_item, opens)
        worker = np.where(lowest == highest, lowest, -2)[tiles.row]
        first = np.minimum.reduceat(items.values, opens)[tiles.row]
        fold = self.dependencies.fold
        held: NDArray[np.bool_] = (
            (fold(np.minimum, self.tile_worker, tiles) == worker)
            & (fold(np.maximum, self.tile_worker, tiles) == worker)
            & (fold(np.maximum, self.tile_last, tiles) < first)
        )
        return held

    def find_first_gap(self, tiles: Ints, items: Ints) -> tuple[int, int]:
        """Return the first (tile, position in ``items``) that the order of one worker does not enforce; one exists."""
        for tile in tiles.tolist():
            late = (self.tile_last[tile] >= items) | (self.tile_worker[tile] != self.worker[items])
            if late.any():
                return tile, int(np.flatnonzero(late)[0])
        raise AssertionError("one worker runs all tiles before all items")


class _LinkCheck:
    """Check of the dependencies of one link.

    Attributes:
        edges, by_wait: counts by ``run``, as in ``Coverage``.
        examples: one dependency for each ordering, shared by all links.
    """

    def __init__(
        self,
        facts: PlanIndex,
        dependencies: Dependencies,
        posts: PostIndex,
        order: _WorkerOrder,
        segments: _Segments,
        link: Link,
        examples: dict[Ordering, Edge],
        implied: Callable[[], ImpliedOrder],
    ) -> None:
        plan = facts.plan
        self.facts, self.dependencies, self.posts = facts, dependencies, posts
        self.order, self.segments, self.link = order, segments, link
        self.edges = self.by_wait = 0
        self.examples = examples
        self.implied = implied
        # A region that moves with k is touched segment by segment, any other from the start of the item.
        self.use = np.flatnonzero(segments.opening | link.target.uses_k)
        item = segments.item[self.use]
        coords = plan.graph.ops[link.consumer].compute_coords(plan.items.tile[item])
        lo, hi = link.target.compute_bounds(
            plan.graph.tensor(link.tensor).shape, coords, segments.k_lo[self.use], segments.k_hi[self.use]
        )
        first, case = find_distinct(*lo.T, *hi.T, segments.prefix[self.use])
        box_first, self.box = find_distinct(*lo[first].T, *hi[first].T)  # ascending: cases are sorted by box
        self.lo, self.hi = lo[first][box_first], hi[first][box_first]
        self.wait_begin = plan.waits.ptr[item[first]]
        self.wait_end = segments.wait_end[self.use][first]
        #: Members of each case, as positions in ``use``.
        self.members = group_by(case, len(first))

    def run(self) -> None:
        """Check that every dependency of the link is enforced.

        Raises:
            CoverageError: one is not.
        """
        for start, stop, runs in self.dependencies.iter_runs(self.link, self.lo, self.hi):
            needed = self.posts.find_ranges(runs, stop - start)
            a, b = np.searchsorted(self.box, [start, stop])
            for c, d in iter_batches(self.wait_end[a:b] - self.wait_begin[a:b]):
                cases = np.arange(a + c, a + d, dtype=np.int64)
                self._check(cases, self.box[cases] - start, needed)

    def _check(self, cases: Ints, box: Ints, needed: PostedRanges) -> None:
        """Check the dependencies of some cases; ``box`` is the row of ``needed`` of each case."""
        facts = self.facts
        # Only waits between the lowest and the highest semaphore that a case needs are relevant to it.
        n = facts.plan.semaphores
        lowest, highest = np.full(len(needed.ptr) - 1, n, np.int64), np.full(len(needed.ptr) - 1, -1, np.int64)
        np.minimum.at(lowest, needed.tiles.row, np.where(needed.first >= 0, needed.first, n))
        np.maximum.at(highest, needed.tiles.row, needed.last)
        size = self.wait_end[cases] - self.wait_begin[cases]
        row = np.repeat(np.arange(len(cases), dtype=np.int64), size)
        cls = facts.wait_class[expand_ranges(self.wait_begin[cases], size)]
        low, step = facts.low[cls], facts.step[cls]
        skip = -(-np.maximum(lowest[box[row]] - low, 0) // step)
        count = np.minimum(facts.count[cls] - 1, (highest[box[row]] - low) // step) - skip + 1
        keep = count > 0
        waits = Groups(compute_offsets(np.bincount(row[keep], minlength=len(cases))), cls[keep])
        awaited = AwaitedRanges(waits.ptr, (low + skip * step)[keep], count[keep], step[keep])
        # Decide once for all cases that need the same semaphores and await the same ones of these.
        node = np.r_[0, _number_prefixes(waits)][np.where(waits.sizes > 0, waits.ptr[1:], 0)]
        first, group = find_distinct(box, node)
        members = self.members.take(cases)
        by_group = group_by(group[members.rows], len(first))
        use = Groups(by_group.ptr, members.values[by_group.values])
        for a, b in iter_batches(needed.sizes[box[first]] + np.diff(awaited.ptr)[first]):
            some = np.arange(a, b, dtype=np.int64)
            self._decide(needed.take(box[first[some]]), awaited.take(first[some]), use.take(some))

    def _decide(self, needed: PostedRanges, awaited: AwaitedRanges, use: Groups) -> None:
        """Check, row by row, that ``use`` awaits the needed tiles, or that one worker runs them before."""
        tiles = needed.tiles
        self.edges += int((use.sizes[tiles.row] * tiles.count).sum())
        whole = awaited.contains_range(tiles.row, needed, self.facts.plan.semaphores)
        self._count_awaited(tiles.take(whole), use)
        # Runs that no single wait contains are checked tile by tile if any of their posts may be awaited.
        part = ~whole & (needed.first >= 0) & (np.diff(awaited.ptr)[tiles.row] > 0)
        self._check_ordered(tiles.take(~whole & ~part), use)
        rows = np.unique(tiles.row[part])
        of_row = group_by(tiles.row[part], len(use))
        size = np.bincount(tiles.row[part], tiles.count[part], minlength=len(use)).astype(np.int64)
        for a, b in iter_batches((size + awaited.sizes)[rows]):
            some, mine = of_row.take(rows[a:b]), use.take(rows[a:b])
            each = tiles.take(np.flatnonzero(part)[some.values], some.rows).split_into_singles()
            post = self.facts.post_of_tile[self.dependencies.find_first_tiles(each)]
            covered = awaited.take(rows[a:b]).contains(each.row, post, self.facts.plan.semaphores)
            self._count_awaited(each.take(covered), mine)
            self._check_ordered(each.take(~covered), mine)

    def _count_awaited(self, tiles: TileRuns, use: Groups) -> None:
        """Count tiles that ``use`` waits for, row by row."""
        self.by_wait += int((use.sizes[tiles.row] * tiles.count).sum())
        self._record(Ordering.WAIT, tiles, use)

    def _check_ordered(self, tiles: TileRuns, use: Groups) -> None:
        """Check, row by row, that one worker runs the tiles before ``use``, or that waits of others imply their end.

        Raises:
            CoverageError: neither holds.
        """
        if len(tiles) and self.link.hazard is not Hazard.RAW:
            producer = (
                np.searchsorted(self.dependencies.base, self.dependencies.find_first_tiles(tiles), side="right") - 1
            )
            follows = self.implied().is_before(producer, self.link.consumer)
            self._count_awaited(tiles.take(follows), use)
            tiles = tiles.take(~follows)
        if not len(tiles):
            return
        item = Groups(use.ptr, self.segments.item[self.use[use.values]])
        bad = ~self.order.enforces(tiles, item)
        if bad.any():
            row = int(tiles.row[bad][0])
            left = np.sort(self.dependencies.find_first_tiles(tiles.take(tiles.row == row).split_into_singles()))
            tile, which = self.order.find_first_gap(left, item[row])
            segment = int(self.use[use[row][which]])
            producers = tuple(np.flatnonzero(self.facts.tile_of_item == tile).tolist())
            raise CoverageError(
                self._build_error(segment, tile), FaultLocation((int(self.segments.item[segment]),), producers)
            )
        self._record(Ordering.WORKER, tiles, use)

    def _record(self, ordering: Ordering, tiles: TileRuns, use: Groups) -> None:
        """Record one of the dependencies on the tiles, unless the ordering has an example already."""
        if ordering not in self.examples and len(tiles):
            segment = int(self.use[use[int(tiles.row[0])][0]])
            self.examples[ordering] = self._build_edge(segment, int(self.dependencies.find_first_tiles(tiles)[0]))

    def _build_edge(self, segment: int, tile: int) -> Edge:
        """Return the dependency of a segment on a tile."""
        plan, link = self.facts.plan, self.link
        item = int(self.segments.item[segment])
        at = self.dependencies.find_op(tile)
        consumer, producer = plan.graph.ops[link.consumer], plan.graph.ops[at]
        one = np.array([item])
        lo, hi = link.target.compute_bounds(
            plan.graph.tensor(link.tensor).shape,
            consumer.compute_coords(plan.items.tile[one]),
            self.segments.k_lo[[segment]],
            self.segments.k_hi[[segment]],
        )
        region = Region(link.tensor, tuple(map(int, lo[0])), tuple(map(int, hi[0])))
        return Edge(
            link.hazard,
            producer.name,
            producer.format_tile(tile - int(self.facts.base[at])),
            plan.format_item(item),
            region,
            link.target.arg,
            int(self.segments.k_lo[segment]) if link.target.uses_k else None,
        )

    def _build_error(self, segment: int, tile: int) -> str:
        facts, plan = self.facts, self.facts.plan
        edge, item = self._build_edge(segment, tile), int(self.segments.item[segment])
        begin, end = int(plan.waits.ptr[item]), int(self.segments.wait_end[segment])
        post = int(facts.post_of_tile[tile])
        if post < 0:
            cause = f"that tile posts no semaphore (NoSync?); give op {edge.op!r} a policy that posts"
        else:
            numbers = range(plan.semaphores)
            waits = facts.wait_class[begin : min(end, begin + _MAX_LISTED + 1)].tolist()
            awaited = [s for cls in waits for s in numbers[facts.slice_semaphores(cls)][: _MAX_LISTED + 1]]
            shown = ", ".join(map(str, awaited[:_MAX_LISTED])) + (", ..." if len(awaited) > _MAX_LISTED else "")
            done = f"has waited only for {shown}" if awaited else "waits for nothing by then"
            cause = (
                f"that tile posts semaphore {post} and the item {done}; add a wait for semaphore {post} "
                f"before the item {edge.verb}, or build the plan with interlace.build, which derives waits from "
                "the graph"
            )
        return f"{edge}, but {cause}"


def _number_prefixes(groups: Groups) -> Ints:
    """Number values from 1 so that two are equal exactly if their rows agree up to and including them (a trie)."""
    order = np.argsort(-groups.sizes, kind="stable")  # rows that reach a given depth form a prefix
    size = groups.sizes[order]
    node = np.zeros(len(groups.values), np.int64)
    parent = np.zeros(len(groups), np.int64)
    fresh = 1
    rows = len(groups)
    for depth in range(int(size.max(initial=0))):
        rows = int(np.searchsorted(-size[:rows], -depth, side="left"))
        row = order[:rows]
        at = groups.ptr[row] + depth
        first, cls = find_distinct(parent[row], groups.values[at])
        node[at] = parent[row] = fresh + cls
        fresh += len(first)
    return node
