"""Proof that a plan can neither deadlock nor race. It trusts nothing in the plan.

What is proved, and why it suffices:

1. Every tile's reduction is covered by items exactly once, so every output is written, by one tile.
2. A wait's threshold equals the posts that reach each of its semaphores in one run. Counters only grow
   and are compared by difference against ``(run + 1) * threshold``, so a wait ends exactly when *all*
   producers of the semaphore have posted in this run, and never before.
3. Every dependency found in the graph (again, here) is enforced: by such a wait that stands before the
   access, or because one worker runs both items in that order.
4. Progress. If each item waits only for items earlier in the sequence, the earliest unfinished item can
   always run: under ticket dispatch for any number of workers, under static dispatch if all workers are
   resident. A static plan that violates this may still be free of deadlock; then worker order and wait
   edges together are checked for a cycle.

Waits cover ranges and tiles share regions, so everything is done on distinct classes of both: a plan of
18,432 items has a few hundred.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields

import numpy as np

from interlace.core.errors import CoverageError, DeadlockError, ItemError, PlanError, SemaphoreError, ThresholdError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Groups, Hazard, Link, distinct, offsets, ranges
from interlace.graph.tensor import Region
from interlace.plan.plan import Dispatch, Plan

_POSTS_LIMIT = 1 << 31  # differences of wrapping 32-bit counters must stay below this


@dataclass(frozen=True)
class Proof:
    """What ``verify`` showed.

    Attributes:
        plan: the plan, now safe to run.
        edges: dependencies between (producer tile, consumer item and segment) that are enforced.
        edges_by_wait: those of them enforced by a wait; the rest follow from a worker's own order.
        longest_chain: items on the longest chain of waits, each waiting for the one before.
        workers_needed: workers that must be resident at once for progress.
        in_sequence: every item waits only for items earlier in the sequence.
    """

    plan: Plan
    edges: int
    edges_by_wait: int
    longest_chain: int
    workers_needed: int
    in_sequence: bool


def verify(plan: Plan) -> Proof:
    """Prove the plan safe, or say what is wrong.

    Raises:
        ItemError: items do not cover every tile and its reduction exactly once.
        SemaphoreError: an index out of range, parts of a tile that post different semaphores.
        ThresholdError: a wait that fires too early or never.
        CoverageError: a dependency that nothing enforces.
        DeadlockError: items that wait for each other.
        PlanError: malformed arrays.
        IntraOpRaceError: two tiles of one op conflict.
    """
    facts = _Facts(plan)
    _check_thresholds(facts)
    edges, by_wait = _check_coverage(facts, Dependencies(plan.graph))
    order = _check_progress(facts)
    return Proof(
        plan,
        edges,
        by_wait,
        _longest_chain(facts, order),
        plan.workers if plan.dispatch is Dispatch.STATIC else 1,
        facts.in_sequence,
    )


class _Facts:
    """Structure of a plan, checked, and what the later steps look up."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        items, waits = plan.items, plan.waits
        n = len(items)
        for table, name, length in ((items, "items", n), (waits, "waits", len(waits))):
            for f in fields(table):
                expected = n + 1 if f.name == "ptr" else length
                column = getattr(table, f.name)
                if column.ndim != 1 or len(column) != expected:
                    raise PlanError(f"{name}.{f.name} has shape {column.shape}; expected ({expected},)")
        if waits.ptr[0] != 0 or waits.ptr[-1] != len(waits) or (np.diff(waits.ptr) < 0).any():
            raise PlanError(f"waits.ptr must rise from 0 to {len(waits)}")
        if plan.workers < 1:
            raise PlanError(f"plan has {plan.workers} workers; it needs at least one")
        self.base = plan.tile_base()
        self._check_items()
        self._check_semaphores()
        #: Owner of each wait row.
        self.wait_item = Groups(waits.ptr, waits.first).rows
        #: Distinct waits (without k): representative row of each, and row -> class.
        self.wait_first, self.wait_class = distinct(waits.first, waits.count, waits.stride, waits.threshold)
        #: Semaphores of each distinct wait.
        rows = self.wait_first
        self.wait_sems = Groups(
            offsets(waits.count[rows]), ranges(waits.first[rows], waits.count[rows], waits.stride[rows])
        )
        if len(self.wait_sems.values) and not (
            (self.wait_sems.values >= 0) & (self.wait_sems.values < plan.semaphores)
        ).all():
            bad = (self.wait_sems.values < 0) | (self.wait_sems.values >= plan.semaphores)
            row = int(self.wait_sems.rows[bad][0])
            item = int(self.wait_item[self.wait_class == row][0])
            raise SemaphoreError(
                f"{plan.item_name(item)} waits for semaphore {int(self.wait_sems.values[bad][0])}, "
                f"but the plan has {plan.semaphores}; raise Plan.semaphores or mend the wait"
            )
        #: Position in the sequence of the last item that posts each semaphore, -1 if none does.
        self.last_poster = np.full(plan.semaphores, -1, np.int64)
        np.maximum.at(self.last_poster, items.post[items.post >= 0], np.flatnonzero(items.post >= 0))
        #: Same for each distinct wait.
        self.wait_last = np.full(len(rows), -1, np.int64)
        np.maximum.at(self.wait_last, self.wait_sems.rows, self.last_poster[self.wait_sems.values])
        self.in_sequence = bool((self.wait_last[self.wait_class] < self.wait_item).all())

    def _check_items(self) -> None:
        plan, items = self.plan, self.plan.items
        ops = plan.graph.ops
        if len(items) == 0 or items.op.min() < 0 or items.op.max() >= len(ops):
            raise ItemError(f"items name ops outside 0..{len(ops) - 1}")
        tiles = np.array([op.tiles for op in ops], np.int64)[items.op]
        extent = np.array([op.k_extent for op in ops], np.int64)[items.op]
        block = np.array([op.reduction.block if op.reduction else 1 for op in ops], np.int64)[items.op]
        checks = [
            ((items.tile < 0) | (items.tile >= tiles), "lies outside its op's grid"),
            ((items.k_lo < 0) | (items.k_lo >= items.k_hi) | (items.k_hi > extent), "has a k-range outside its reduction"),
            (
                (items.k_lo % block != 0) | ((items.k_hi % block != 0) & (items.k_hi != extent)),
                "splits its reduction inside a chunk; split at multiples of the block",
            ),
        ]
        if plan.dispatch is Dispatch.STATIC:
            checks.append(((items.worker < 0) | (items.worker >= plan.workers), "has a worker out of range"))
        else:
            checks.append((items.worker != -1, "names a worker, but ticket dispatch decides that at run time"))
        for bad, what in checks:
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                raise ItemError(
                    f"item {i} (op {ops[int(items.op[i])].name!r}, tile number {int(items.tile[i])}, "
                    f"k {int(items.k_lo[i])}:{int(items.k_hi[i])}) {what}"
                )
        self.tile_of_item = self.base[items.op] + items.tile
        order = np.lexsort((items.k_lo, self.tile_of_item))
        tile, k_lo, k_hi = self.tile_of_item[order], items.k_lo[order], items.k_hi[order]
        opens = np.r_[True, tile[1:] != tile[:-1]]
        expected = np.where(opens, 0, np.r_[0, k_hi[:-1]])
        closes = np.r_[opens[1:], True]
        bad = (k_lo != expected) | (closes & (k_hi != extent[order]))
        missing = np.setdiff1d(np.arange(self.base[-1]), tile)
        if len(missing):
            op = int(np.searchsorted(self.base, missing[0], side="right")) - 1
            raise ItemError(
                f"{ops[op].tile_name(int(missing[0] - self.base[op]))} has no item; every tile needs at least one"
            )
        if bad.any():
            i = int(order[np.flatnonzero(bad)[0]])
            raise ItemError(
                f"{plan.item_name(i)}: the items of this tile do not cover its reduction exactly once; "
                f"make their k-ranges meet end to end from 0 to {int(extent[i])}"
            )
        #: Items of each tile, by k.
        self.parts = Groups(np.r_[np.flatnonzero(opens), len(order)].astype(np.int64), order.astype(np.int64))

    def _check_semaphores(self) -> None:
        plan, items, waits = self.plan, self.plan.items, self.plan.waits
        bad = (items.post < -1) | (items.post >= plan.semaphores)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise SemaphoreError(
                f"{plan.item_name(i)} posts semaphore {int(items.post[i])}, but the plan has {plan.semaphores}"
            )
        #: Semaphore that each tile posts.
        self.post_of_tile = items.post[self.parts.values[self.parts.ptr[:-1]]]
        bad = items.post != self.post_of_tile[self.tile_of_item]
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise SemaphoreError(
                f"{plan.item_name(i)} posts semaphore {int(items.post[i])}, another part of the tile posts "
                f"{int(self.post_of_tile[self.tile_of_item[i]])}; parts of one tile share one post"
            )
        rows = np.repeat(np.arange(len(items), dtype=np.int64), np.diff(waits.ptr))
        bad = waits.count < 1
        bad[1:] |= (rows[1:] == rows[:-1]) & (waits.k[1:] < waits.k[:-1])
        bad |= waits.k >= items.k_hi[rows]
        block = np.array([op.reduction.block if op.reduction else 1 for op in plan.graph.ops], np.int64)[items.op[rows]]
        bad |= (waits.k > items.k_lo[rows]) & (waits.k % block != 0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise PlanError(
                f"{plan.item_name(int(rows[row]))}: wait {row} (count {int(waits.count[row])}, k {int(waits.k[row])}) "
                "is malformed; waits of an item are sorted by k, lie on chunks inside its k-range and cover "
                "at least one semaphore"
            )


def _check_thresholds(facts: _Facts) -> None:
    """Each threshold equals the posts that reach each semaphore of its wait."""
    plan = facts.plan
    posts = np.bincount(facts.post_of_tile[facts.post_of_tile >= 0], minlength=plan.semaphores)
    if len(posts) and posts.max() >= _POSTS_LIMIT:
        raise ThresholdError(f"semaphore {int(posts.argmax())} takes {int(posts.max())} posts a run; split it up")
    threshold = plan.waits.threshold[facts.wait_first][facts.wait_sems.rows]
    bad = threshold != posts[facts.wait_sems.values]
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        semaphore, want, get = int(facts.wait_sems.values[at]), int(threshold[at]), int(posts[facts.wait_sems.values[at]])
        item = int(facts.wait_item[facts.wait_class == facts.wait_sems.rows[at]][0])
        effect = "never ends" if want > get else "can end before its producers have posted"
        raise ThresholdError(
            f"{plan.item_name(item)} waits for semaphore {semaphore} to reach {want}, "
            f"but {get} tiles post it in a run, so the wait {effect}; set the threshold to {get}"
        )


def _check_coverage(facts: _Facts, dependencies: Dependencies) -> tuple[int, int]:
    """Every dependency is enforced. Returns (edges, edges enforced by a wait)."""
    edges = by_wait = 0
    for consumer in range(len(facts.plan.graph.ops)):
        links = dependencies.into(consumer)
        if not links:
            continue
        segments = _Segments(facts, consumer)
        for link in links:
            a, b = _check_link(facts, dependencies, segments, link)
            edges += a
            by_wait += b
    return edges, by_wait


class _Segments:
    """Stretches of the items of one op between two waits, and the waits that stand before each.

    An item with waits at k = 0, 0, 128 and k-range [0, 512) has two segments: [0, 128) behind two waits
    and [128, 512) behind three.
    """

    def __init__(self, facts: _Facts, op: int) -> None:
        plan = facts.plan
        items, waits = plan.items, plan.waits
        mine = np.flatnonzero(items.op == op)
        row_of = Groups(waits.ptr, np.arange(len(waits), dtype=np.int64)).take(mine)
        row_item = mine[row_of.rows]
        row_k = np.maximum(waits.k[row_of.values], items.k_lo[row_item])
        first, _ = distinct(np.r_[mine, row_item], np.r_[items.k_lo[mine], row_k])
        item, lo = np.r_[mine, row_item][first], np.r_[items.k_lo[mine], row_k][first]
        order = np.lexsort((lo, item))
        self.item, self.k_lo = item[order], lo[order]
        last = np.r_[self.item[1:] != self.item[:-1], True]
        self.k_hi = np.where(last, items.k_hi[self.item], np.r_[self.k_lo[1:], 0])
        self.opening = np.r_[True, self.item[1:] != self.item[:-1]]
        # The waits before a segment are a prefix of the item's rows; number distinct prefixes as a trie does.
        depth_of_row = row_of.values - waits.ptr[row_item]
        prefix_of_row = np.zeros(len(row_item), np.int64)
        fresh = 1
        parent = np.zeros(len(items), np.int64)
        for depth in range(int(depth_of_row.max(initial=-1)) + 1):
            at = np.flatnonzero(depth_of_row == depth)
            _, cls = distinct(parent[row_item[at]], facts.wait_class[row_of.values[at]])
            prefix_of_row[at] = fresh + cls
            parent[row_item[at]] = prefix_of_row[at]
            fresh += int(cls.max(initial=-1)) + 1
        # Rows are sorted by k within an item, so (item, k) orders them and the prefix is found by bisection.
        span = int(row_k.max(initial=0)) + 2
        before = np.searchsorted(row_item * span + row_k, self.item * span + self.k_lo, side="right") - 1
        before = before if len(row_item) else np.full(len(self.item), -1)
        has = (before >= 0) & (row_item[before] == self.item) if len(row_item) else np.zeros(len(self.item), bool)
        self.prefix = np.where(has, prefix_of_row[before] if len(row_item) else 0, 0)
        self.wait_rows = np.where(has, row_of.values[before] + 1 if len(row_item) else 0, waits.ptr[self.item])


def _check_link(facts: _Facts, dependencies: Dependencies, segments: _Segments, link: Link) -> tuple[int, int]:
    plan = facts.plan
    op = plan.graph.ops[link.consumer]
    # A region that moves with k is touched segment by segment; any other from the item's start.
    use = np.arange(len(segments.item)) if link.target.uses_k else np.flatnonzero(segments.opening)
    item = segments.item[use]
    coords = op.coords(plan.items.tile[item])
    k_lo, k_hi = segments.k_lo[use], segments.k_hi[use]
    lo, hi = link.target.bounds(plan.graph.tensor(link.tensor).shape, coords, k_lo, k_hi)
    first, case = distinct(*lo.T, *hi.T, segments.prefix[use])
    box_first, box = distinct(*lo[first].T, *hi[first].T)
    needed = dependencies.producers(link, lo[first][box_first], hi[first][box_first]).take(box)
    needed = Groups(needed.ptr, needed.values + facts.base[link.producer])

    # Semaphores awaited before each case.
    begin, end = plan.waits.ptr[item[first]], segments.wait_rows[use][first]
    rows = Groups(offsets(end - begin), ranges(begin, end - begin))
    awaited = facts.wait_sems.take(facts.wait_class[rows.values])
    awaited_case = rows.rows[awaited.rows]
    width = plan.semaphores + 1
    post = facts.post_of_tile[needed.values]
    covered = np.isin(needed.rows * width + post, awaited_case * width + awaited.values) & (post >= 0)

    uses = np.bincount(case, minlength=len(first))
    edges = int((uses * needed.sizes).sum())
    by_wait = int(uses[needed.rows[covered]].sum())
    if covered.all():
        return edges, by_wait

    # What no wait covers must follow from the order of one worker.
    open_case, open_tile = needed.rows[~covered], needed.values[~covered]
    members = Groups(offsets(uses), np.argsort(case, kind="stable").astype(np.int64)).take(open_case)
    pair_item, pair_tile = item[members.values], open_tile[members.rows]
    ordered = _ordered_on_one_worker(facts, pair_item, pair_tile)
    if not ordered.all():
        at = int(np.flatnonzero(~ordered)[0])
        where = use[members.values[at]]
        raise CoverageError(_uncovered(facts, link, segments, int(where), int(pair_tile[at])))
    return edges, by_wait


def _ordered_on_one_worker(facts: _Facts, item: Ints, tile: Ints) -> np.ndarray:
    """True where one worker runs all items of the tile before the item."""
    plan = facts.plan
    if plan.dispatch is Dispatch.TICKET and plan.workers > 1:
        return np.zeros(len(item), bool)
    parts = facts.parts.take(tile)
    before = parts.values < item[parts.rows]
    if plan.dispatch is Dispatch.STATIC:
        before &= plan.items.worker[parts.values] == plan.items.worker[item[parts.rows]]
    return np.bincount(parts.rows[before], minlength=len(item)) == parts.sizes


def _uncovered(facts: _Facts, link: Link, segments: _Segments, segment: int, tile: int) -> str:
    plan = facts.plan
    item = int(segments.item[segment])
    consumer, producer = plan.graph.ops[link.consumer], plan.graph.ops[link.producer]
    local = tile - int(facts.base[link.producer])
    one = np.array([item])
    lo, hi = link.target.bounds(
        plan.graph.tensor(link.tensor).shape,
        consumer.coords(plan.items.tile[one]),
        segments.k_lo[[segment]],
        segments.k_hi[[segment]],
    )
    region = Region(link.tensor, tuple(map(int, lo[0])), tuple(map(int, hi[0])))
    verb, past = {
        Hazard.RAW: ("reads", "writes"),
        Hazard.WAR: ("overwrites", "still reads"),
        Hazard.WAW: ("overwrites", "writes"),
    }[link.hazard]
    begin, end = int(plan.waits.ptr[item]), int(segments.wait_rows[segment])
    waits = facts.wait_sems.take(facts.wait_class[begin:end]).values
    post = int(facts.post_of_tile[tile])
    if post < 0:
        cause = f"that tile posts no semaphore (NoSync?); give op {producer.name!r} a policy that posts"
    elif len(waits):
        shown = ", ".join(map(str, waits[:4])) + (", ..." if len(waits) > 4 else "")
        cause = (
            f"that tile posts semaphore {post} and the item has waited only for {shown}; "
            f"let the wait cover semaphore {post} (a policy of op {producer.name!r} no coarser than the plan's waits)"
        )
    else:
        cause = f"the item waits for nothing by then; add a wait for semaphore {post}"
    when = f" before k = {int(segments.k_lo[segment])}" if link.target.uses_k else ""
    return (
        f"{plan.item_name(item)} {verb} {region}{when}, which {producer.tile_name(local)} {past} "
        f"({link.hazard.name} through {link.tensor!r}, argument {link.target.arg!r}), but {cause}"
    )


def _check_progress(facts: _Facts) -> Ints:
    """An order in which items can run one by one. Raises DeadlockError if there is none."""
    plan = facts.plan
    if facts.in_sequence:
        return np.arange(len(plan.items), dtype=np.int64)
    if plan.dispatch is Dispatch.TICKET or plan.workers == 1:
        bad = int(np.flatnonzero(facts.wait_last[facts.wait_class] >= facts.wait_item)[0])
        item, poster = int(facts.wait_item[bad]), int(facts.wait_last[facts.wait_class[bad]])
        raise DeadlockError(
            f"{plan.item_name(item)} (item {item}) waits for {plan.item_name(poster)}, which is dispatched later "
            f"(item {poster}); workers may all be waiting by then. Order producers before consumers"
        )
    return _topological(facts)


def _topological(facts: _Facts) -> Ints:
    """Kahn's algorithm over worker order and wait edges, with semaphores as nodes in between."""
    plan, items = facts.plan, facts.plan.items
    n = len(items)
    by_worker = np.argsort(items.worker, kind="stable")
    same = items.worker[by_worker][1:] == items.worker[by_worker][:-1]
    follower = np.full(n, -1, np.int64)
    follower[by_worker[:-1][same]] = by_worker[1:][same]
    blocked = np.zeros(n, np.int64)
    blocked[by_worker[1:][same]] = 1
    blocked += np.diff(plan.waits.ptr)
    items_left = np.bincount(items.post[items.post >= 0], minlength=plan.semaphores)
    sems_left = facts.wait_sems.sizes.copy()
    waits_on = Groups(
        offsets(np.bincount(facts.wait_sems.values, minlength=plan.semaphores)),
        facts.wait_sems.rows[np.argsort(facts.wait_sems.values, kind="stable")],
    )
    rows_of = Groups(
        offsets(np.bincount(facts.wait_class, minlength=len(facts.wait_first))),
        facts.wait_item[np.argsort(facts.wait_class, kind="stable")],
    )
    ready = deque(np.flatnonzero(blocked == 0).tolist())
    order: list[int] = []

    def release(item: int) -> None:
        blocked[item] -= 1
        if blocked[item] == 0:
            ready.append(item)

    while ready:
        i = ready.popleft()
        order.append(i)
        if follower[i] >= 0:
            release(int(follower[i]))
        post = int(items.post[i])
        if post < 0:
            continue
        items_left[post] -= 1
        if items_left[post]:
            continue
        for wait in waits_on[post].tolist():
            sems_left[wait] -= 1
            if sems_left[wait] == 0:
                for waiter in rows_of[wait].tolist():
                    release(waiter)
    if len(order) < n:
        stuck = np.setdiff1d(np.arange(n), order)
        names = "; ".join(plan.item_name(int(i)) for i in stuck[:3])
        raise DeadlockError(
            f"{len(stuck)} items wait for each other through semaphores and the order of their workers, "
            f"among them {names}. Order producers before consumers on each worker"
        )
    return np.array(order, np.int64)


def _longest_chain(facts: _Facts, order: Ints) -> int:
    """Items on the longest chain of waits."""
    plan = facts.plan
    depth = np.ones(len(plan.items), np.int64)
    sem_depth = np.zeros(plan.semaphores, np.int64)
    wait_depth = np.full(len(facts.wait_first), -1, np.int64)
    ptr, cls, post = plan.waits.ptr.tolist(), facts.wait_class.tolist(), plan.items.post.tolist()
    for i in order.tolist():
        d = 0
        for row in range(ptr[i], ptr[i + 1]):
            w = cls[row]
            if wait_depth[w] < 0:  # all posters precede every waiter, so this is final
                wait_depth[w] = sem_depth[facts.wait_sems[w]].max()
            d = max(d, int(wait_depth[w]))
        depth[i] = d + 1
        if post[i] >= 0 and sem_depth[post[i]] <= d:
            sem_depth[post[i]] = d + 1
    return int(depth.max())
