"""Proof that a plan can neither deadlock nor race. It trusts nothing in the plan.

Facts that the proof establishes, and why they suffice:

1. Every tile's reduction is covered by items exactly once, so every output is written, by one tile.
2. A wait's threshold equals the posts that reach each of its semaphores in one run. Counters only grow
   and are compared by difference against ``(run + 1) * threshold``, so a wait ends exactly when *all*
   producers of the semaphore have posted in this run, and never before.
3. Every dependency of the graph (derived again here) is enforced: by such a wait before the access, or
   because one worker runs both items in that order.
4. Progress. If each item waits only for items earlier in the sequence, the earliest unfinished item can
   always run: under ticket dispatch for any number of workers, under static dispatch if all workers are
   resident. A static plan that violates this may still be free of deadlock; then worker order and wait
   edges together are checked for a cycle.
   Work stealing also needs all workers resident. Every queue is popped from its front. A thief's own queue is
   empty, and it has finished all items that it took, except for an item that waits for nothing. Stolen items that
   it does not run next become its queue, in sequence. So the earliest unfinished item is at the front of a queue
   whose owner holds no other item that might not end, and takes it next; or a worker has taken it, and holds no
   earlier item that might not end.
   Under hybrid dispatch, workers claim tickets, in sequence, when their queues are empty, and all items claimed by
   ticket come after all queued ones. With a ready queue, items are taken when their waits are met, so none
   waits, and the earliest unfinished item is in the queue or taken. A semaphore completes once a run (2), so each
   item enters the queue once. The same holds for a dispatcher, the only one to take from that queue, which assigns
   each item to one of its workers, all of them resident. An assigned item does not wait, so it ends, and its worker
   has room again.
5. Under spawn dispatch (``spawns``), the items that run in any case and wait for none that might not run are claimed
   first, in sequence. A spawned item waits only for such items and for its ancestors, which have ended. So the worker
   that holds the smallest unfinished position of the queue never waits. An item has one spawner, so it enters the
   queue at most once, the queue has room for all of them, and the count of outstanding items falls to 0. Then the
   items in ``behind`` are claimed, in sequence, and wait for earlier ones.

Waits cover ranges and tiles share regions, so all computation is on distinct classes of both: a plan of
18,432 items has a few hundred.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass

import numpy as np

from interlace.core.arguments import format_value
from interlace.core.errors import DeadlockError, FaultLocation, PlanError, ThresholdError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.ragged import Groups, compute_offsets
from interlace.plan.coverage import Coverage, check_coverage
from interlace.plan.facts import PlanIndex
from interlace.plan.orderings import Edge, Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.record import CachedCoverage, hash_plan
from interlace.plan.spawns import Spawns

_POSTS_LIMIT = 1 << 31  # differences of wrapping 32-bit counters must stay below this
_MAX_NAMED = 4  # maximum number of ops that a message names; it counts the rest
_CACHED_RANGE = 64  # minimum number of semaphores whose maximum is cached, a power of two
_VERIFIED = object()  # token that only this module passes to the constructor of Proof


@dataclass(frozen=True)
class Proof:
    """Result of ``verify`` for a plan, computed now or earlier (``load_proof``). It cannot be made in any other way,
    ``dataclasses.replace`` included.

    Attributes:
        plan: the plan, now safe to run.
        edges: number of dependencies between (producer tile, consumer item and segment) that are enforced.
        edges_by_wait: number of those that a wait enforces; the rest follow from a worker's own order.
        rests_on: orderings that enforce them, each with one dependency that it enforces. An executor that does not
            keep one of these refuses the proof.
        longest_chain: number of items on the longest chain of waits, each waiting for the one before.
        workers_needed: number of workers that must be resident at once for progress.
        in_sequence: True if every item waits only for items earlier in the sequence.

    Raises:
        PlanError: the Proof was constructed outside this module.
    """

    plan: Plan
    edges: int
    edges_by_wait: int
    rests_on: tuple[tuple[Ordering, Edge], ...]
    longest_chain: int
    workers_needed: int
    in_sequence: bool
    made_with: InitVar[object] = None

    @property
    def unproved_ops(self) -> tuple[str, ...]:
        """Ops whose access maps the proof assumes to be correct (``Op.is_unproved``).

        Their bodies are CUDA source that nothing checks against the maps, or the maps come from a file and no available
        kernel makes them anew.
        """
        return tuple(op.name for op in self.plan.graph.ops if op.is_unproved)

    @property
    def assumptions(self) -> str:
        """Assumptions of the proof, as the end of a sentence; empty if there are none."""
        names = self.unproved_ops
        if not names:
            return ""
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        ops = ", ".join(map(repr, names[:_MAX_NAMED])) + more
        which = f"op {ops} touches what its" if len(names) == 1 else f"ops {ops} touch what their"
        return f", provided that {which} access maps say, which is not proved"

    def __str__(self) -> str:
        return f"{self.edges:,} dependencies enforced, no deadlock, no race{self.assumptions}"

    def __post_init__(self, made_with: object) -> None:
        if made_with is not _VERIFIED:
            raise PlanError("a Proof made by hand proves nothing; take the one that interlace.verify(plan) returns")


def verify(plan: Plan) -> Proof:
    """Prove the plan safe, or raise an error that says what is wrong.

    Raises:
        ItemError: items do not cover every tile and its reduction exactly once.
        SemaphoreError: an index out of range, or parts of a tile that post different semaphores.
        ThresholdError: a wait that ends too early or never.
        CoverageError: a dependency that nothing enforces.
        DeadlockError: items that wait for each other.
        SpawnError: an item without a definite spawner, or one that waits for an item that may never run.
        PlanError: malformed arrays, or an argument that is not a plan.
        IntraOpRaceError: two tiles of one op that conflict.
        UnwrittenError: an element that is read before anything writes it, or an output that is written in part.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{format_value(plan)} is no Plan; make one with interlace.build(graph, interlace.Schedule(workers=4)), "
            "with interlace.autoplan(graph), or of a file with interlace.read_plan(text)"
        )
    facts = _check_structure(plan)
    return _build_proof(facts, check_coverage(facts, Dependencies(plan.graph)))


def load_proof(plan: Plan, cached: CachedCoverage) -> Proof:
    """Return the proof of a plan that was proved before, from the coverage found then.

    Most of the time of a proof goes into finding the dependencies of the graph and checking that they are enforced.
    This result is taken from ``cached`` if it belongs to exactly this plan; all other checks run again. Callers must
    know that ``verify`` produced it (``planner/proof_cache`` ensures this).

    Raises:
        ItemError, SemaphoreError, ThresholdError, DeadlockError, SpawnError: as in ``verify``.
        PlanError: as in ``verify``, or ``cached`` belongs to another plan.
    """
    if cached.plan_hash != hash_plan(plan):
        raise PlanError("what was found is of another plan; take the one that interlace.verify(plan) proves")
    return _build_proof(_check_structure(plan), cached.coverage)


def _check_structure(plan: Plan) -> PlanIndex:
    facts = PlanIndex(plan)
    _check_thresholds(facts)
    return facts


def _build_proof(facts: PlanIndex, coverage: Coverage) -> Proof:
    plan = facts.plan
    order = _check_progress(facts)
    if plan.dispatch is Dispatch.SPAWN:
        Spawns.from_plan(plan)
    return Proof(
        plan,
        coverage.edges,
        coverage.by_wait,
        coverage.rests_on,
        _compute_longest_chain(facts, order),
        plan.workers if plan.dispatch.has_resident_workers else 1,
        facts.in_sequence,
        _VERIFIED,
    )


def _check_thresholds(facts: PlanIndex) -> None:
    """Check that each threshold equals the posts that reach each semaphore of its wait, at least one.

    Raises:
        ThresholdError: one does not.
    """
    plan = facts.plan
    posts = np.bincount(facts.post_of_tile[facts.post_of_tile >= 0], minlength=plan.semaphores)
    if len(posts) and posts.max() >= _POSTS_LIMIT:
        raise ThresholdError(
            f"semaphore {int(posts.argmax())} takes {int(posts.max())} posts a run; spread its tiles over "
            "several semaphores, each with fewer than 2^31 posts"
        )
    threshold = plan.waits.threshold[facts.wait_row]
    bad = (facts.fold(np.minimum, posts) != threshold) | (facts.fold(np.maximum, posts) != threshold)
    bad |= threshold < 1
    if not bad.any():
        return
    cls = int(np.flatnonzero(bad)[0])
    want, gets = int(threshold[cls]), posts[facts.slice_semaphores(cls)]
    at = int(np.flatnonzero((gets != want) | (want < 1))[0])
    item, get = int(facts.wait_item[facts.wait_row[cls]]), int(gets[at])
    semaphore = range(plan.semaphores)[facts.slice_semaphores(cls)][at]
    what = f"{plan.format_item(item)} waits for semaphore {semaphore} to reach {want}, but"
    place = FaultLocation((item,), tuple(np.flatnonzero(plan.items.post == semaphore).tolist()))
    if not get:
        raise ThresholdError(f"{what} no tile posts it in a run; drop the wait or let its producers post", place)
    effect = "never ends" if want > get else "can end before its producers have posted"
    what += f" {get} tiles post it in a run, so the wait {effect}; set the threshold to {get}"
    raise ThresholdError(what, place)


def _check_progress(facts: PlanIndex) -> Ints:
    """Return an order in which items can run one by one.

    Raises:
        DeadlockError: no such order exists.
    """
    plan = facts.plan
    if facts.in_sequence:
        return np.arange(len(plan.items), dtype=np.int64)
    if plan.dispatch is not Dispatch.STATIC or plan.workers == 1:
        bad = int(np.flatnonzero(facts.wait_last[facts.wait_class] >= facts.wait_item)[0])
        item, poster = int(facts.wait_item[bad]), int(facts.wait_last[facts.wait_class[bad]])
        raise DeadlockError(
            f"{plan.format_item(item)} (item {item}) waits for {plan.format_item(poster)}, which is dispatched "
            f"later (item {poster}); workers may all be waiting by then. Order producers before consumers",
            FaultLocation((item,), (poster,)),
        )
    return _sort_topologically(facts)


def _sort_topologically(facts: PlanIndex) -> Ints:
    """Sort items topologically over worker order and waits (Kahn's algorithm).

    A wait watches one incomplete semaphore. When that completes, the wait moves on to its next one, skipping all that
    other waits of the same stride found complete. So neither the waits of each semaphore nor the semaphores of each
    wait are listed.
    """
    plan, items = facts.plan, facts.plan.items
    n = len(items)
    by_worker = np.argsort(items.worker, kind="stable")
    same = items.worker[by_worker][1:] == items.worker[by_worker][:-1]
    follower = np.full(n, -1, np.int64)
    follower[by_worker[:-1][same]] = by_worker[1:][same]
    blocked = np.diff(plan.waits.ptr)
    blocked[by_worker[1:][same]] += 1
    posts_left = np.bincount(items.post[items.post >= 0], minlength=plan.semaphores).tolist()
    awaited = list(zip(facts.low.tolist(), facts.count.tolist(), facts.step.tolist(), strict=True))
    beyond: dict[int, dict[int, int]] = {}  # by step: from a complete semaphore to one before which all are complete
    watchers: list[list[int]] = [[] for _ in range(plan.semaphores)]
    waiters = Groups(
        compute_offsets(np.bincount(facts.wait_class, minlength=len(facts.low))),
        facts.wait_item[np.argsort(facts.wait_class, kind="stable")],
    )
    ready = deque(np.flatnonzero(blocked == 0).tolist())
    order: list[int] = []

    def release(item: int) -> None:
        blocked[item] -= 1
        if blocked[item] == 0:
            ready.append(item)

    def watch(cls: int) -> None:
        low, count, step = awaited[cls]
        end, passed, jump = low + count * step, [], beyond.setdefault(step, {})
        while low < end and not posts_left[low]:
            passed.append(low)
            low = jump.get(low, low + step)
        jump.update(dict.fromkeys(passed, low))
        if low < end:
            awaited[cls] = low, (end - low) // step, step
            watchers[low].append(cls)
            return
        for item in waiters[cls].tolist():
            release(item)

    for cls in range(len(awaited)):
        watch(cls)
    while ready:
        i = ready.popleft()
        order.append(i)
        if follower[i] >= 0:
            release(int(follower[i]))
        post = int(items.post[i])
        if post < 0:
            continue
        posts_left[post] -= 1
        if not posts_left[post]:
            for cls in watchers[post]:
                watch(cls)
    if len(order) < n:
        stuck = np.setdiff1d(np.arange(n), order)
        names = "; ".join(plan.format_item(int(i)) for i in stuck[:3])
        raise DeadlockError(
            f"{len(stuck)} items wait for each other through semaphores and the order of their workers, "
            f"among them {names}. Order producers before consumers on each worker",
            FaultLocation(tuple(stuck.tolist())),
        )
    return np.array(order, np.int64)


def _compute_longest_chain(facts: PlanIndex, order: Ints) -> int:
    """Return the number of items on the longest chain of waits."""
    plan = facts.plan
    deepest = _RangeMaximum(plan.semaphores)
    ranges = list(zip(facts.low.tolist(), facts.count.tolist(), facts.step.tolist(), strict=True))
    of_wait = [-1] * len(ranges)
    ptr, cls, post = plan.waits.ptr.tolist(), facts.wait_class.tolist(), plan.items.post.tolist()
    longest = 0
    for i in order.tolist():
        d = 0
        for w in cls[ptr[i] : ptr[i + 1]]:
            if of_wait[w] < 0:  # all posters precede every waiter, so this is final
                of_wait[w] = deepest.query(*ranges[w])
            if of_wait[w] > d:
                d = of_wait[w]
        if longest <= d:
            longest = d + 1
        if post[i] >= 0 and deepest.one[post[i]] <= d:
            deepest.one[post[i]] = d + 1
    return longest


class _RangeMaximum:
    """Range maximum over numbers of semaphores, for ranges whose numbers are final.

    Maxima of 64, 128, ... semaphores that lie ``step`` apart are cached, so that overlapping ranges share them.

    Attributes:
        one: number of each semaphore.
    """

    def __init__(self, semaphores: int) -> None:
        self.one = [0] * semaphores
        self._blocks: dict[tuple[int, int, int], int] = {}

    def query(self, low: int, count: int, step: int) -> int:
        """Return the highest number in the range."""
        if count < _CACHED_RANGE:
            return max(self.one[low : low + count * step : step])
        best = 0
        while count:
            place = low // step
            size = min(place & -place or count, 1 << (count.bit_length() - 1))
            best = max(best, self._block(low, size, step))
            low, count = low + size * step, count - size
        return best

    def _block(self, low: int, size: int, step: int) -> int:
        if size < _CACHED_RANGE:
            return max(self.one[low : low + size * step : step])
        key = low, size, step
        if key not in self._blocks:
            half = size // 2
            self._blocks[key] = max(self._block(low, half, step), self._block(low + half * step, half, step))
        return self._blocks[key]
