"""Lockstep: the order in which the workers of a run touch units, computed without a clock.

The workers move in rounds. In its turn a worker without an item takes the next one. Then it runs one step, and if that
was the item's last, writes and releases the item. A cache sees this order of accesses from W workers at equal speed,
which is close to a GPU's where all items of an op cost the same. Real SMs are not quite equally fast, and workers that
begin together drift apart. With a ``spread`` of s, the slowest worker falls behind by s of a round in each, and the
others by less, in proportion to their rank in a random order, which the number of a draw fixes. In a round the workers
that are least behind load first, and one that is a whole round behind sits out one. A worker whose item waits for posts
sits out rounds until they are made: which items move together, and so which share what one of them reads, depends on
it. Workers on neighbouring SMs that load the same data (``Mode.neighbours``) keep in step and fall behind together.

Two workers, items A (two steps, a0 a1), B (one step, b0) and C (one step, c0), each then writing one unit:

    round 0     worker 0: a0            worker 1: b0 write B
    round 1     worker 0: a1 write A    worker 1: c0 write C
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import SimulationError
from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.plan.facts import PlanIndex
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Victim
from interlace.sim.memory import Floats
from interlace.sim.modes import PERSISTENT, Gate, Launches, Mode, Queues
from interlace.sim.steal import choose_victim
from interlace.sim.traffic import Touches


@dataclass(frozen=True, eq=False)
class AccessStream:
    """Accesses to units, one entry per access, in order.

    Attributes:
        unit: unit that is accessed.
        is_write: True for a write.
        item: item that accesses it, as a position in the plan's sequence.
        worker: worker that accesses it.
        is_evict_first: True for a read that tells the L2 to evict the unit first.
        neighbours: number of workers in a row that run on neighbouring SMs.
    """

    unit: NDArray[np.int32]
    is_write: NDArray[np.bool_]
    item: NDArray[np.int32]
    worker: NDArray[np.int32]
    is_evict_first: NDArray[np.bool_]
    neighbours: int = 1

    def __len__(self) -> int:
        return len(self.unit)


def interleave(
    plan: Plan, touches: Touches, mode: Mode = PERSISTENT, spread: float = 0.0, draw: int = 0
) -> AccessStream:
    """Return the accesses of a plan's workers in lockstep.

    Workers wait for the ends of predecessor ops or for posts, as the mode says. If none can move, because the plan
    deadlocks, all move without waits for a round.

    Args:
        plan: plan to run.
        touches: touches of the plan.
        mode: way in which items are handed out.
        spread: fraction by which the slowest worker is slower than the fastest, from 0 to below 1.
        draw: number of the draw of which workers are slow.

    Raises:
        SimulationError: the touches are those of another plan, or the spread is out of range.
        PlanError: the plan has no workers, an item names a worker that does not exist, or the plan's arrays are
            inconsistent.
    """
    if len(touches.write_ptr) != len(plan.items) + 1:
        raise SimulationError(
            f"touches of {len(touches.write_ptr) - 1} items for a plan of {len(plan.items)}; take touches(plan)"
        )
    if not 0.0 <= spread < 1.0:
        raise SimulationError(f"a spread of {spread} between the workers' speeds; use 0 for none, or less than 1")
    n, queues, launches = len(touches), Queues.from_plan(plan, mode), Launches.from_plan(plan, mode)
    columns = np.empty(n, np.int32), np.empty(n, np.bool_), np.empty(n, np.int32), np.empty(n, np.int32)
    unit, is_write, item, worker = columns
    neighbours = mode.count_neighbours(plan)
    max_stolen = len(plan.items) if plan.stealing.most is None else plan.stealing.most
    _interleave(
        queues.items,
        plan.items.op,
        queues.workers,
        max_stolen if mode.gate is Gate.OPEN and plan.dispatch is Dispatch.STEALING else 0,
        plan.stealing.victim is Victim.RANDOM,
        mode.gate is Gate.ENDED,
        launches.ptr,
        launches.predecessor_counts.copy(),
        launches.next_ptr,
        launches.next,
        spread * _draw_slowness(queues.workers, neighbours, draw),
        np.arange(queues.workers),
        touches.step_ptr,
        touches.read_ptr,
        touches.reads,
        touches.write_ptr,
        touches.writes,
        *columns,
        queues.ptr[:-1].copy(),
        queues.ptr[1:].copy(),
        launches.ptr[:-1].copy(),
        launches.ptr[1:] - launches.ptr[:-1],
        np.full((2, queues.workers), -1),
        np.zeros(queues.workers, np.int64),
        np.zeros(queues.workers),
        *_list_waits(plan, touches, mode),
        np.zeros(queues.workers, np.int64),
        np.zeros(queues.workers, np.int64),
    )
    named = np.array([t.name in mode.evict_first for t in plan.graph.tensors] + [False])
    is_evict_first = named[touches.units.tensor][unit] & ~is_write
    return AccessStream(unit, is_write, item, worker, is_evict_first, neighbours)


def _draw_slowness(workers: int, neighbours: int, draw: int) -> Floats:
    """Return each worker's rank in a random order, in (0, 1]; workers on neighbouring SMs have one rank."""
    groups = -(-workers // neighbours)
    rank = np.random.default_rng(2 * draw).permutation(groups) + 1
    return np.repeat(rank / groups, neighbours)[:workers]


class _Waits(NamedTuple):
    """Waits and posts of a plan, counted in steps.

    Attributes:
        ptr: waits of each item (CSR).
        step: step of the item before which each wait is.
        first, semaphores, stride, threshold: semaphores of each wait, and the posts that each of them needs.
        post, tile: semaphore that each item posts, or -1, and its tile.
        missing: parts of each tile that have not ended.
        posts: posts of each semaphore.
    """

    ptr: Ints
    step: Ints
    first: Ints
    semaphores: Ints
    stride: Ints
    threshold: Ints
    post: Ints
    tile: Ints
    missing: Ints
    posts: Ints


def _list_waits(plan: Plan, touches: Touches, mode: Mode) -> _Waits:
    """Return the waits of a plan; none if the mode has none or launches begin when others have ended."""
    n = len(plan.items)
    if not mode.waits or mode.gate is Gate.ENDED:
        none, (ptr, tile) = np.zeros(0, np.int64), np.zeros((2, n + 1), np.int64)
        return _Waits(ptr, none, none, none, none, none, np.full(n, -1), tile, np.ones(1, np.int64), none)
    facts, items, waits = PlanIndex(plan), plan.items, plan.waits
    owner = facts.wait_item
    share = np.clip((waits.k - items.k_lo[owner]) / (items.k_hi - items.k_lo)[owner], 0.0, 1.0)
    steps = np.diff(touches.step_ptr)[owner]
    found = _Waits(
        ptr=waits.ptr,
        step=np.minimum((share * steps).astype(np.int64), steps - 1),
        first=waits.first,
        semaphores=waits.count,
        stride=waits.stride,
        threshold=waits.threshold,
        post=items.post,
        tile=facts.tile_of_item,
        missing=facts.parts.sizes,
        posts=np.zeros(plan.semaphores, np.int64),
    )
    # Otherwise numba compiles again for every mix of dtypes, strides, and of writable and read-only arrays.
    return _Waits._make(np.array(column, np.int64, order="C") for column in found)


@cached_njit(allocates=False)
def _interleave(
    items: Ints,
    op: Ints,
    workers: int,
    max_stolen: int,
    random_victims: bool,
    op_by_op: bool,
    op_ptr: Ints,
    closed: Ints,
    next_ptr: Ints,
    next_op: Ints,
    lag: Floats,
    turns: Ints,
    step_ptr: Ints,
    read_ptr: Ints,
    reads: NDArray[np.int32],
    write_ptr: Ints,
    writes: NDArray[np.int32],
    unit: NDArray[np.int32],
    is_write: NDArray[np.bool_],
    item: NDArray[np.int32],
    worker: NDArray[np.int32],
    following: Ints,
    ends: Ints,
    cursor: Ints,
    unended: Ints,
    held_and_step: Ints,
    thefts: Ints,
    behind: Floats,
    wait_ptr: Ints,
    wait_step: Ints,
    wait_first: Ints,
    wait_count: Ints,
    wait_stride: Ints,
    wait_threshold: Ints,
    post: Ints,
    tile: Ints,
    missing: Ints,
    posts: Ints,
    row: Ints,
    seen: Ints,
) -> None:
    """Write the accesses. The last arguments are the initial state.

    Args:
        lag: part of a round by which each worker falls behind in each.
        turns: workers in the order in which they load, at first all of them in turn.
        following, ends: next position and end of each queue.
        cursor, unended: next item of each op, and number of its items that have not ended.
        held_and_step: item of each worker and step of it, -1 for none.
        thefts: number of thefts of each worker.
        behind: part of a round by which each worker is behind.
        wait_ptr to posts: see ``_Waits``.
        row, seen: next wait of each worker's item, and number of its semaphores that have the posts they need.
    """
    queues, left, earliest, at = len(ends), len(items), 0, 0
    held, step = held_and_step[0], held_and_step[1]
    stuck = False
    while left > 0:
        moves = 0
        for n in range(1, workers):  # insertion sort: from one round to the next few workers change places
            w, place = turns[n], n
            while place > 0 and behind[turns[place - 1]] > behind[w]:
                turns[place] = turns[place - 1]
                place -= 1
            turns[place] = w
        for turn in range(workers):
            w = turns[turn]
            if held[w] < 0 and op_by_op:
                while earliest < len(cursor) and cursor[earliest] == op_ptr[earliest + 1]:
                    earliest += 1
                for o in range(earliest, len(cursor)):
                    if closed[o] == 0 and cursor[o] < op_ptr[o + 1]:
                        held[w] = items[cursor[o]]
                        cursor[o] += 1
                        break
            elif held[w] < 0:
                # The worker's own queue, then, if permitted, a victim's queue or the shared one.
                own = queue = w % queues
                if max_stolen > 0 and following[own] == ends[own]:
                    queue = choose_victim(following, ends, own, random_victims, thefts[w])
                    thefts[w] += 1
                elif queues > workers and following[own] == ends[own]:
                    queue = queues - 1
                first, count = following[queue], ends[queue] - following[queue]
                if count > 0:
                    held[w] = items[first]
                    some = min(max_stolen, (count + 1) // 2) if max_stolen > 0 and queue != own else 1
                    following[queue] += some
                    if some > 1:
                        following[own], ends[own] = first + 1, first + some
            i = held[w]
            if i < 0:
                continue
            if step[w] < step_ptr[i]:
                step[w] = step_ptr[i]
                row[w], seen[w] = wait_ptr[i], 0
            while row[w] < wait_ptr[i + 1] and wait_step[row[w]] <= step[w] - step_ptr[i]:
                r = row[w]
                while seen[w] < wait_count[r] and posts[wait_first[r] + seen[w] * wait_stride[r]] >= wait_threshold[r]:
                    seen[w] += 1
                if seen[w] < wait_count[r] and not stuck:
                    break
                row[w], seen[w] = r + 1, 0
            if row[w] < wait_ptr[i + 1] and wait_step[row[w]] <= step[w] - step_ptr[i]:
                continue
            moves += 1
            behind[w] += lag[w]
            if behind[w] >= 1.0:
                behind[w] -= 1.0
                continue
            for r in range(read_ptr[step[w]], read_ptr[step[w] + 1]):
                unit[at], is_write[at], item[at], worker[at] = reads[r], False, i, w
                at += 1
            step[w] += 1
            if step[w] == step_ptr[i + 1]:
                for r in range(write_ptr[i], write_ptr[i + 1]):
                    unit[at], is_write[at], item[at], worker[at] = writes[r], True, i, w
                    at += 1
                held[w], step[w] = -1, -1
                left -= 1
                missing[tile[i]] -= 1
                if missing[tile[i]] == 0 and post[i] >= 0:
                    posts[post[i]] += 1
                if op_by_op:
                    unended[op[i]] -= 1
                    if unended[op[i]] == 0:
                        for n in range(next_ptr[op[i]], next_ptr[op[i] + 1]):
                            closed[next_op[n]] -= 1
        stuck = moves == 0
