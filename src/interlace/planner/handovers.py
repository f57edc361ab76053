"""Hand-offs between ops: which ops each op waits for, and how much of the waiting is exposed.

A worker whose loads run ahead still computes one item while the next one waits. Only part of a wait is exposed:

    worker    works 0..60 on item 0; item 1 arrives at 40, and its waits end at 100      exposed: 60..100, 40 ns
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.ragged import expand_ranges, find_distinct
from interlace.plan.plan import Plan
from interlace.trace.events import Trace


@dataclass(frozen=True)
class HandOff:
    """Hand-off to an op from the ops that it waits for.

    Attributes:
        op: name of the op whose items wait.
        awaited: names of the producer ops, each with the maximum number of its tiles that one item waits for.
        exposed_us: time in microseconds in which a worker waits for them and computes nothing, averaged over all
            workers.
    """

    op: str
    awaited: tuple[tuple[str, int], ...]
    exposed_us: float


def find_hand_offs(plan: Plan, trace: Trace) -> tuple[HandOff, ...]:
    """Return the hand-off to each op, in the graph's order.

    Args:
        plan: plan that ran.
        trace: trace of all its items.
    """
    names = [op.name for op in plan.graph.ops]
    awaited: dict[int, dict[int, int]] = {o: {} for o in range(len(names))}
    for op, producer, tiles in _count_awaited(plan):
        awaited[op][producer] = tiles
    exposed = np.bincount(trace.op, compute_exposed_ns(trace), len(names)) / plan.workers / 1e3
    return tuple(
        HandOff(name, tuple((names[p], tiles) for p, tiles in sorted(awaited[o].items())), float(exposed[o]))
        for o, name in enumerate(names)
    )


def _count_awaited(plan: Plan) -> list[tuple[int, int, int]]:
    """Return triples of op, producer, and the maximum number of the producer's tiles that one item awaits."""
    items, waits = plan.items, plan.waits
    if not len(waits):
        return []
    ops = len(plan.graph.ops)
    # Per semaphore: the ops that post it and the number of tiles of each; tiles of several ops may share a semaphore.
    posting = np.flatnonzero(items.post >= 0)
    first, _ = find_distinct(items.op[posting], items.tile[posting])
    posting = posting[first]
    key, tiles = np.unique(items.post[posting] * ops + items.op[posting], return_counts=True)
    semaphore, producer = key // ops, key % ops
    low, high = (np.searchsorted(semaphore, np.arange(plan.semaphores), side=side) for side in ("left", "right"))
    # Per class of equal waits: producers and numbers of tiles.
    of_class, wait_class = find_distinct(waits.first, waits.count, waits.stride)
    covered = expand_ranges(waits.first[of_class], waits.count[of_class], waits.stride[of_class])
    owner = np.repeat(np.arange(len(of_class)), waits.count[of_class])
    size = (high - low)[covered]
    entry = expand_ranges(low[covered], size)
    key, place = np.unique(np.repeat(owner, size) * ops + producer[entry], return_inverse=True)
    sums = np.bincount(place, tiles[entry], len(key)).astype(np.int64)
    classes, producers = key // ops, key % ops
    # Per item: sums over its waits.
    low, high = (np.searchsorted(classes, wait_class, side=side) for side in ("left", "right"))
    entry = expand_ranges(low, high - low)
    item = np.repeat(waits.item, high - low)
    key, place = np.unique(item * ops + producers[entry], return_inverse=True)
    of_item = np.bincount(place, sums[entry], len(key)).astype(np.int64)
    key, place = np.unique(items.op[key // ops] * ops + key % ops, return_inverse=True)
    most = np.zeros(len(key), np.int64)
    np.maximum.at(most, place, of_item)
    return [(int(k) // ops, int(k) % ops, int(n)) for k, n in zip(key, most, strict=True)]


def compute_exposed_ns(trace: Trace) -> Ints:
    """Return for each item the time between its arrival and its start in which its worker computes no other item."""
    if not len(trace.op):
        return np.zeros(0, np.int64)
    # Shift each worker to a disjoint time interval, so that one sort serves all workers.
    origin, _, rank = trace.wait_ns.min(), *np.unique(trace.worker, return_inverse=True)
    apart = rank * (trace.end_ns.max() - origin + 1) - origin
    arrived, begin, end = (times + apart for times in (trace.wait_ns, trace.start_ns, trace.end_ns))
    order = np.argsort(begin, kind="stable")
    begins, ends = begin[order], np.maximum.accumulate(end[order])
    opens = np.r_[True, begins[1:] > ends[:-1]]
    begins, ends = begins[opens], ends[np.r_[np.flatnonzero(opens)[1:] - 1, len(ends) - 1]]
    before = np.r_[0, np.cumsum(ends - begins)]

    def sum_work(until: Ints) -> Ints:
        place = np.searchsorted(begins, until, side="right")
        last = np.maximum(place - 1, 0)
        over = np.where(place > 0, np.maximum(ends[last] - np.maximum(until, begins[last]), 0), 0)
        total: Ints = before[place] - over
        return total

    return np.asarray(begin - arrived - (sum_work(begin) - sum_work(arrived)), np.int64)
