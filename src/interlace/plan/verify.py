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
   edges together are checked for a cycle. Under stealing, too, all workers must be resident. There every
   list is taken from its front, and who takes from another's has an empty list and has ended all that it
   took, but for an item that waits for nothing; what it takes and does not run next becomes its list, in
   sequence. So the earliest unfinished item is at the front of a list, whose owner holds nothing else that
   may not end and takes it next; or somebody took it, who holds nothing before it that may not end.
   Under hybrid dispatch workers draw, by ticket and in sequence, when their lists are done, and all that is
   drawn comes behind all lists. Under a queue items are taken when their waits are met, so none waits, and
   the earliest unfinished item is in the queue or taken; a semaphore is complete once a run (2), so each item
   comes there once. So it is with a dispatcher, which alone takes from that queue and gives each item to one of
   its workers, all of them resident: what was given does not wait, so it ends, and then there is room again.
5. Under spawn dispatch (``spawns``) the items that run in any case and wait for none that may not are drawn first, in
   sequence. An item that is spawned waits for such alone, and for those that it is descended from, which are over. So
   whoever holds the smallest unfinished place of the queue waits for nobody. An item is spawned by one other, so it
   comes to the queue once at most, the queue holds them all, and the count of those outstanding comes to 0. Then the
   items behind are drawn, in sequence, and wait for earlier ones.

Waits cover ranges and tiles share regions, so everything is done on distinct classes of both: a plan of
18,432 items has a few hundred.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass

import numpy as np

from interlace.core.arguments import shown
from interlace.core.errors import DeadlockError, Place, PlanError, ThresholdError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.ragged import Groups, offsets
from interlace.plan.coverage import Coverage, check_coverage
from interlace.plan.facts import Facts
from interlace.plan.orderings import Edge, Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.record import Found, digest
from interlace.plan.spawns import Spawns

_POSTS_LIMIT = 1 << 31  # differences of wrapping 32-bit counters must stay below this
_NAMED = 4  # ops that a text names before it counts the others
_VERIFIED = object()  # what a Proof is made with here and nowhere else


@dataclass(frozen=True)
class Proof:
    """What ``verify`` showed of a plan, now or before (``recalled``). Nobody else makes one, not by
    ``dataclasses.replace`` either.

    Attributes:
        plan: the plan, now safe to run.
        edges: dependencies between (producer tile, consumer item and segment) that are enforced.
        edges_by_wait: those of them enforced by a wait; the rest follow from a worker's own order.
        rests_on: the orderings that enforce them, each with one dependency that it enforces. An executor that does not
            keep one of these refuses the proof.
        longest_chain: items on the longest chain of waits, each waiting for the one before.
        workers_needed: workers that must be resident at once for progress.
        in_sequence: every item waits only for items earlier in the sequence.

    Raises:
        PlanError: made by hand.
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
    def unproved(self) -> tuple[str, ...]:
        """Ops whose access maps the proof takes for granted (``Op.unproved``).

        Nothing holds a text to them; or they are from a file, and no kernel at hand makes them anew.
        """
        return tuple(op.name for op in self.plan.graph.ops if op.unproved)

    @property
    def provided(self) -> str:
        """What the proof takes for granted, as the end of a sentence; empty if nothing."""
        names = self.unproved
        if not names:
            return ""
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        ops = ", ".join(map(repr, names[:_NAMED])) + more
        which = f"op {ops} touches what its" if len(names) == 1 else f"ops {ops} touch what their"
        return f", provided that {which} access maps say, which is not proved"

    def __str__(self) -> str:
        return f"{self.edges:,} dependencies enforced, no deadlock, no race{self.provided}"

    def __post_init__(self, made_with: object) -> None:
        if made_with is not _VERIFIED:
            raise PlanError("a Proof made by hand proves nothing; take the one that interlace.verify(plan) returns")


def verify(plan: Plan) -> Proof:
    """Prove the plan safe, or say what is wrong.

    Raises:
        ItemError: items do not cover every tile and its reduction exactly once.
        SemaphoreError: an index out of range, parts of a tile that post different semaphores.
        ThresholdError: a wait that fires too early or never.
        CoverageError: a dependency that nothing enforces.
        DeadlockError: items that wait for each other.
        SpawnError: an item that nobody can be said to spawn, or that waits for what may never run.
        PlanError: malformed arrays, or no plan at all.
        IntraOpRaceError: two tiles of one op conflict.
        UnwrittenError: an element is read before anything writes it, or an output is written in part.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{shown(plan)} is no Plan; make one with interlace.build(graph, interlace.Choices(workers=4)), with "
            "interlace.plan_graph(graph), or of a file with interlace.read_plan(text)"
        )
    facts = _facts(plan)
    return _proof(facts, check_coverage(facts, Dependencies(plan.graph)))


def recalled(plan: Plan, found: Found) -> Proof:
    """The proof of a plan that was proved before, with what was found of it then.

    To find the dependencies of its graph, and that waits enforce them, is what takes the time of a proof. That is taken
    from there if it was found of just this plan, and all else is proved again. Whoever calls this must know that
    ``verify`` found it (``planner/kept`` says how).

    Raises:
        ItemError, SemaphoreError, ThresholdError, DeadlockError, SpawnError: as ``verify``.
        PlanError: as ``verify``; or it was found of another plan.
    """
    if found.of != digest(plan):
        raise PlanError("what was found is of another plan; take the one that interlace.verify(plan) proves")
    return _proof(_facts(plan), found.coverage)


def _facts(plan: Plan) -> Facts:
    facts = Facts(plan)
    _check_thresholds(facts)
    return facts


def _proof(facts: Facts, coverage: Coverage) -> Proof:
    plan = facts.plan
    order = _check_progress(facts)
    if plan.dispatch is Dispatch.SPAWN:
        Spawns.of(plan)
    return Proof(
        plan,
        coverage.edges,
        coverage.by_wait,
        coverage.rests_on,
        _longest_chain(facts, order),
        plan.workers if plan.dispatch.resident else 1,
        facts.in_sequence,
        _VERIFIED,
    )


def _check_thresholds(facts: Facts) -> None:
    """Each threshold equals the posts that reach each semaphore of its wait, at least one."""
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
    want, gets = int(threshold[cls]), posts[facts.semaphores(cls)]
    at = int(np.flatnonzero((gets != want) | (want < 1))[0])
    item, get = int(facts.wait_item[facts.wait_row[cls]]), int(gets[at])
    semaphore = range(plan.semaphores)[facts.semaphores(cls)][at]
    what = f"{plan.item_name(item)} waits for semaphore {semaphore} to reach {want}, but"
    place = Place((item,), tuple(np.flatnonzero(plan.items.post == semaphore).tolist()))
    if not get:
        raise ThresholdError(f"{what} no tile posts it in a run; drop the wait or let its producers post", place)
    effect = "never ends" if want > get else "can end before its producers have posted"
    what += f" {get} tiles post it in a run, so the wait {effect}; set the threshold to {get}"
    raise ThresholdError(what, place)


def _check_progress(facts: Facts) -> Ints:
    """An order in which items can run one by one. Raises DeadlockError if there is none."""
    plan = facts.plan
    if facts.in_sequence:
        return np.arange(len(plan.items), dtype=np.int64)
    if plan.dispatch is not Dispatch.STATIC or plan.workers == 1:
        bad = int(np.flatnonzero(facts.wait_last[facts.wait_class] >= facts.wait_item)[0])
        item, poster = int(facts.wait_item[bad]), int(facts.wait_last[facts.wait_class[bad]])
        raise DeadlockError(
            f"{plan.item_name(item)} (item {item}) waits for {plan.item_name(poster)}, which is dispatched "
            f"later (item {poster}); workers may all be waiting by then. Order producers before consumers",
            Place((item,), (poster,)),
        )
    return _topological(facts)


def _topological(facts: Facts) -> Ints:
    """Kahn's algorithm over worker order and waits.

    A wait watches one semaphore that is not complete yet; when that one is, it moves on to its next, past all
    those that other waits with its step found complete. So neither the waits for each semaphore nor the semaphores
    of each wait are listed.
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
    beyond: dict[int, dict[int, int]] = {}  # by step: from a complete semaphore to one up to which all are complete
    watchers: list[list[int]] = [[] for _ in range(plan.semaphores)]
    waiters = Groups(
        offsets(np.bincount(facts.wait_class, minlength=len(facts.low))),
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
        names = "; ".join(plan.item_name(int(i)) for i in stuck[:3])
        raise DeadlockError(
            f"{len(stuck)} items wait for each other through semaphores and the order of their workers, "
            f"among them {names}. Order producers before consumers on each worker",
            Place(tuple(stuck.tolist())),
        )
    return np.array(order, np.int64)


def _longest_chain(facts: Facts, order: Ints) -> int:
    """Items on the longest chain of waits."""
    plan = facts.plan
    deepest = _Deepest(plan.semaphores)
    ranges = list(zip(facts.low.tolist(), facts.count.tolist(), facts.step.tolist(), strict=True))
    of_wait = [-1] * len(ranges)
    ptr, cls, post = plan.waits.ptr.tolist(), facts.wait_class.tolist(), plan.items.post.tolist()
    longest = 0
    for i in order.tolist():
        d = 0
        for w in cls[ptr[i] : ptr[i + 1]]:
            if of_wait[w] < 0:  # all posters precede every waiter, so this is final
                of_wait[w] = deepest.of(*ranges[w])
            if of_wait[w] > d:
                d = of_wait[w]
        longest = max(longest, d + 1)
        if post[i] >= 0 and deepest.one[post[i]] <= d:
            deepest.one[post[i]] = d + 1
    return longest


class _Deepest:
    """The highest of the numbers that semaphores have, over ranges of semaphores whose numbers are final.

    Numbers of 2, 4, 8, ... semaphores that lie ``step`` apart are kept, so that ranges that overlap share them.

    Attributes:
        one: number of each semaphore.
    """

    def __init__(self, semaphores: int) -> None:
        self.one = [0] * semaphores
        self._blocks: dict[tuple[int, int, int], int] = {}

    def of(self, low: int, count: int, step: int) -> int:
        """The highest number in the range."""
        best = 0
        while count:
            place = low // step
            size = min(place & -place or count, 1 << (count.bit_length() - 1))
            best = max(best, self._block(low, size, step))
            low, count = low + size * step, count - size
        return best

    def _block(self, low: int, size: int, step: int) -> int:
        if size == 1:
            return self.one[low]
        key = low, size, step
        if key not in self._blocks:
            half = size // 2
            self._blocks[key] = max(self._block(low, half, step), self._block(low + half * step, half, step))
        return self._blocks[key]
