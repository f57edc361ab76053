"""Build a plan from a graph and a schedule: items, their sequence and workers, and the waits that the graph requires.

    tiles              per op: params of its tile                              the retiled graph (``planner/retile``)
    order, split       per op: its tiles in order, each cut into parts         items of each op
    policy             per op: which tiles share a semaphore                   semaphore that each item posts
    interleaving       all items                                               the sequence
    dispatch           per-worker queues, striped or balanced, or none         worker of each item
    dependencies       from the graph, through the policy                      waits (``planner/waits``)

Semaphores that no item awaits are dropped at the end. Later stages do not trust this module: ``verify`` derives the
dependencies again and checks the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from interlace.core.arguments import check_int_array, check_type
from interlace.core.errors import ArgumentError, OrderError, PlanError, TooManyItemsError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import mark_covered
from interlace.kernels.base import format_ops
from interlace.plan.plan import Dispatch, Items, Plan, Waits
from interlace.plan.stealing import STEAL_ONE
from interlace.planner.retile import retile
from interlace.planner.shared_results import SharedResults
from interlace.policies.consumers import Consumers
from interlace.policies.interleavings import OpMajorItems
from interlace.policies.orders import RowMajor, check_permutation
from interlace.policies.schedule import Assignment, Schedule, find_value
from interlace.policies.splits import Split, WholeTiles
from interlace.policies.sync import TileSync

#: Maximum number of items in a plan. Each item takes about 300 bytes of arrays and of proof data.
MAX_ITEMS = 1 << 22


def build(graph: Graph, schedule: Schedule, dependencies: Dependencies | SharedResults | None = None) -> Plan:
    """Build the plan that follows from a graph and a schedule.

    Use ``build`` when you decide the schedule, ``autoplan`` to have it decided for an executor and a device.
    ``dependencies`` are the graph's dependencies, or the results that all plans of the graph share (``SharedResults``);
    pass them to build many plans of one graph, in the tiles that it has. By default they are derived.

    Raises:
        ArgumentError: an argument is not a graph or not a schedule, or dependencies are passed with new tiles.
        PlanError: the number of workers is below one.
        PlanError, ParamError, ShapeError: the schedule has wrong tiles; see ``retile``.
        TooManyItemsError: there are more than ``MAX_ITEMS`` items (``check_item_count``); raised before anything is
            built.
        OrderError: an order or interleaving is not a permutation, a policy or split does not return arrays of
            integers in range, or the schedule names an unknown op.
        IntraOpRaceError: two tiles of one op conflict.
        UnwrittenError: an element is read before it is written, or an output is written only in part.
    """
    check_type(graph, Graph, "build", "graph")
    check_type(schedule, Schedule, "build", "schedule")
    check_type(
        dependencies, (Dependencies, SharedResults, type(None)), "build", "dependencies", "il.Dependencies(graph)"
    )
    if schedule.workers < 1:
        raise PlanError(f"a schedule names {schedule.workers} workers; use at least one")
    for what in (schedule.policy, schedule.order, schedule.split):
        unknown = set(what) - {op.name for op in graph.ops} if isinstance(what, Mapping) else set()
        if unknown:
            known = [op.name for op in graph.ops]
            raise OrderError(f"a schedule names ops {sorted(unknown, key=str)}; graph {graph.name!r} has {known}")
    if schedule.tiles and dependencies is not None:
        raise ArgumentError("build: dependencies hold for the graph's own tiles; retile the graph, or pass none")
    graph = retile(graph, schedule.tiles)
    check_item_count(graph, schedule)
    if not isinstance(dependencies, SharedResults):
        dependencies = SharedResults(graph, dependencies)
    return _build_plan(graph, schedule, dependencies)


def _build_plan(graph: Graph, schedule: Schedule, shared: SharedResults) -> Plan:
    parts = _list_parts(graph, schedule)
    consumers = Consumers(shared.dependencies, parts, schedule.chunk_waits)
    post_of_tile, base = _assign_semaphores(graph, schedule, consumers)
    given = shared.interleave(schedule.interleaving, parts, post_of_tile)
    sequence = check_permutation(given, len(parts.op), "the items")
    op, tile, k_lo, k_hi = (column[sequence] for column in (parts.op, parts.tile, parts.k_lo, parts.k_hi))
    post = post_of_tile[base[op] + tile]
    items = Items(op, tile, k_lo, k_hi, _assign_workers(graph, schedule, op, k_lo, k_hi), post)
    waits = shared.derive_waits(items, post_of_tile, schedule.chunk_waits)
    post, waits, semaphores = _drop_unused(post, waits)
    items = replace(items, post=post)
    return Plan(
        graph,
        schedule.dispatch,
        schedule.workers,
        semaphores,
        items,
        waits,
        policy=_describe(schedule.policy) + (", per k-chunk" if schedule.chunk_waits else ""),
        order="; ".join(map(_describe, (schedule.order, schedule.split, schedule.interleaving))),
        stealing=schedule.stealing if schedule.dispatch is Dispatch.STEALING else STEAL_ONE,
    )


def check_item_count(graph: Graph, schedule: Schedule) -> None:
    """Check the number of items of the plan that ``build`` would make of a graph in its tiles, without creating any.

    Raises:
        TooManyItemsError: there are more than ``MAX_ITEMS`` items.
    """
    items = {
        op: find_value(schedule.split, op.name, WholeTiles()).bound_items(op.tiles, _count_chunks(op))
        for op in graph.ops
    }
    total = sum(items.values())
    if total > MAX_ITEMS:
        op = max(items, key=lambda op: items[op])
        grid = " x ".join(f"{n:,}" for n in op.grid)
        raise TooManyItemsError(
            f"graph {graph.name!r} has {total:,} items, {items[op]:,} of them of op {op.name!r} of {grid} tiles, and a "
            f"plan holds {MAX_ITEMS:,}; use larger tiles, a smaller problem, or fewer parts of a split"
        )


def _count_chunks(op: Op) -> int:
    return op.reduction.chunks if op.reduction else 1


def _describe(value: object) -> str:
    return format_ops(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def _list_parts(graph: Graph, schedule: Schedule) -> OpMajorItems:
    columns: list[tuple[Ints, ...]] = []
    for i, op in enumerate(graph.ops):
        given = find_value(schedule.order, op.name, RowMajor()).compute_permutation(op.grid)
        order = check_permutation(given, op.tiles, f"op {op.name!r}, grid {op.grid}")
        block = op.reduction.block if op.reduction else 1
        at, lo, hi = _cut_items(find_value(schedule.split, op.name, WholeTiles()), op)
        ends = np.minimum(hi * block, op.k_extent)
        columns.append((np.full(len(at), i, np.int64), order[at], lo * block, ends))
    return OpMajorItems(*(np.concatenate(c) for c in zip(*columns, strict=True)))


def _cut_items(split: Split, op: Op) -> tuple[Ints, Ints, Ints]:
    """Return the arrays of a split, checked one by one; ``verify`` checks that items cover each tile exactly once."""
    what = f"split of op {op.name!r}"
    given = split.list_items(op.tiles, _count_chunks(op))
    if not isinstance(given, tuple) or len(given) != 3:
        raise OrderError(f"{what} must give three arrays of items: tiles, first chunks, chunks after the last")
    at = check_int_array(given[0], None, OrderError, what)
    lo, hi = (check_int_array(column, len(at), OrderError, what) for column in given[1:])
    if len(at) and not 0 <= at.min() <= at.max() < op.tiles:
        raise OrderError(f"{what} names tile {int(at.max())} of {op.tiles}; keep within 0 to {op.tiles - 1}")
    return at, lo, hi


def _assign_semaphores(graph: Graph, schedule: Schedule, consumers: Consumers) -> tuple[Ints, Ints]:
    """Return the semaphore of every tile of the graph (-1 for none), and the number of each op's first tile."""
    base = consumers.dependencies.base
    post = np.full(base[-1], -1, np.int64)
    producers = {producer for link in consumers.dependencies.links for producer, _ in link.sources}
    first = 0
    for i, op in enumerate(graph.ops):
        if i not in producers:
            continue
        policy = find_value(schedule.policy, op.name, TileSync())
        local = check_int_array(
            policy.assign_op_semaphores(i, consumers), op.tiles, OrderError, f"policy of op {op.name!r}"
        )
        used, dense = np.unique(local, return_inverse=True)
        skip = int(len(used) and used[0] < 0)
        post[base[i] : base[i + 1]] = np.where(local < 0, -1, first + dense - skip)
        first += len(used) - skip
    return post, base


def _drop_unused(post: Ints, waits: Waits) -> tuple[Ints, Waits, int]:
    """Drop the posts of semaphores that no item awaits; number semaphores from the first awaited one."""
    awaited = mark_covered(waits.first, waits.count, waits.stride, int(post.max(initial=-1)) + 2)  # last entry: post -1
    used = np.flatnonzero(awaited)
    if not len(used):
        return np.full_like(post, -1), waits, 0
    post = np.where(awaited[post], post - used[0], -1)
    return post, replace(waits, first=waits.first - used[0]), int(used[-1] - used[0]) + 1


def _assign_workers(graph: Graph, schedule: Schedule, op: Ints, k_lo: Ints, k_hi: Ints) -> Ints:
    n = len(op)
    if not schedule.dispatch.has_queues:
        return np.full(n, -1, np.int64)
    if schedule.dispatch is Dispatch.HYBRID:
        # Queue the first half: factoring (Hummel, Schonberg and Flynn, 1992), with tickets for its later halves.
        dealt = max(min(schedule.workers, n), n // 2)
        lists = replace(schedule, dispatch=Dispatch.STATIC)
        first = _assign_workers(graph, lists, op[:dealt], k_lo[:dealt], k_hi[:dealt])
        return np.concatenate([first, np.full(n - dealt, -1, np.int64)])
    if schedule.assignment is Assignment.STRIPED:
        return np.arange(n, dtype=np.int64) % schedule.workers
    flops = np.array([max(o.flops, 1.0) / o.k_extent for o in graph.ops])
    load = [(0.0, w) for w in range(min(schedule.workers, n))]
    worker = np.empty(n, np.int64)
    for i, cost in enumerate((flops[op] * (k_hi - k_lo)).tolist()):
        busy, w = heapq.heappop(load)
        worker[i] = w
        heapq.heappush(load, (busy + cost, w))
    return worker
