"""Turns choices into a plan: items, their sequence, their workers, and the waits that the graph demands.

Nothing here is trusted later: ``verify`` derives the dependencies again and checks the result.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

import numpy as np

from interlace.core.errors import OrderError
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Groups, distinct, offsets, ranges
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan.plan import Dispatch, Items, Plan, Waits
from interlace.policies.interleavings import Interleaving, OpAfterOp, Parts
from interlace.policies.orders import Order, RowMajor, check_permutation
from interlace.policies.splits import Split, Whole
from interlace.policies.sync import SyncPolicy, TileSync

T = TypeVar("T")


class Assignment(Enum):
    """How static dispatch hands items to workers."""

    STRIPED = "striped"
    """Item i goes to worker i modulo the number of workers."""
    BALANCED = "balanced"
    """Each item, in sequence, goes to the worker with the least work so far."""


@dataclass(frozen=True)
class Choices:
    """Everything that a plan leaves open. Per-op settings are mappings by op name with a common default.

    Attributes:
        workers: items that run at once.
        dispatch: ticket or static.
        assignment: for static dispatch only.
        policy, order, split: for all ops, or by op name (others get the class default).
        interleaving: how the ops' items merge.
        chunk_waits: wait before the chunk that needs the data, not at the item's start.
    """

    workers: int
    dispatch: Dispatch = Dispatch.TICKET
    assignment: Assignment = Assignment.STRIPED
    policy: SyncPolicy | Mapping[str, SyncPolicy] = field(default_factory=TileSync)
    order: Order | Mapping[str, Order] = field(default_factory=RowMajor)
    split: Split | Mapping[str, Split] = field(default_factory=Whole)
    interleaving: Interleaving = field(default_factory=OpAfterOp)
    chunk_waits: bool = False


def build(graph: Graph, choices: Choices) -> Plan:
    """The plan that follows from a graph and choices.

    Raises:
        OrderError: an order or interleaving that is no permutation, a setting for an unknown op.
        IntraOpRaceError: two tiles of one op conflict.
    """
    for what in (choices.policy, choices.order, choices.split):
        unknown = set(what) - {op.name for op in graph.ops} if isinstance(what, Mapping) else set()
        if unknown:
            raise OrderError(f"settings name ops {sorted(unknown)}; graph {graph.name!r} has {[o.name for o in graph.ops]}")
    dependencies = Dependencies(graph)
    parts = _parts(graph, choices)
    post_of_tile, base = _posts(graph, choices, dependencies)
    sequence = choices.interleaving.sequence(parts, dependencies, post_of_tile)
    check_permutation(sequence, len(parts.op), "the items")
    op, tile, k_lo, k_hi = (column[sequence] for column in (parts.op, parts.tile, parts.k_lo, parts.k_hi))
    waits = _waits(dependencies, choices.chunk_waits, op, tile, k_lo, k_hi, post_of_tile, base)
    post, waits, semaphores = _drop_unused(post_of_tile[base[op] + tile], waits)
    items = Items(op, tile, k_lo, k_hi, _workers(graph, choices, op, k_lo, k_hi), post)
    return Plan(
        graph,
        choices.dispatch,
        choices.workers,
        semaphores,
        items,
        waits,
        policy=_describe(choices.policy) + (", per k-chunk" if choices.chunk_waits else ""),
        order="; ".join(map(_describe, (choices.order, choices.split, choices.interleaving))),
    )


def _setting(value: T | Mapping[str, T], op: Op, default: T) -> T:
    return value.get(op.name, default) if isinstance(value, Mapping) else value


def _describe(value: object) -> str:
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def _parts(graph: Graph, choices: Choices) -> Parts:
    columns: list[tuple[Ints, ...]] = []
    for i, op in enumerate(graph.ops):
        order = _setting(choices.order, op, RowMajor()).permutation(op.grid)
        check_permutation(order, op.tiles, f"op {op.name!r}, grid {op.grid}")
        block, chunks = (op.reduction.block, op.reduction.chunks) if op.reduction else (1, 1)
        at, lo, hi = _setting(choices.split, op, Whole()).items(op.tiles, chunks)
        columns.append((np.full(len(at), i, np.int64), order[at], lo * block, np.minimum(hi * block, op.k_extent)))
    return Parts(*(np.concatenate(c) for c in zip(*columns, strict=True)))


def _posts(graph: Graph, choices: Choices, dependencies: Dependencies) -> tuple[Ints, Ints]:
    """Semaphore of every tile of the graph (-1 for none), and each op's first tile."""
    base = offsets(np.array([op.tiles for op in graph.ops], np.int64))
    post = np.full(base[-1], -1, np.int64)
    producers = {link.producer for link in dependencies.links}
    first = 0
    for i, op in enumerate(graph.ops):
        if i not in producers:
            continue
        local = np.asarray(_setting(choices.policy, op, TileSync()).semaphores(op.coords(), op.grid), np.int64)
        if local.shape != (op.tiles,):
            raise OrderError(f"policy of op {op.name!r} gave {local.shape} semaphores for {op.tiles} tiles; give one each")
        used, dense = np.unique(local, return_inverse=True)
        skip = int(len(used) and used[0] < 0)
        post[base[i] : base[i + 1]] = np.where(local < 0, -1, first + dense - skip)
        first += len(used) - skip
    return post, base


def _waits(
    dependencies: Dependencies,
    chunk_waits: bool,
    op: Ints,
    tile: Ints,
    k_lo: Ints,
    k_hi: Ints,
    post_of_tile: Ints,
    base: Ints,
) -> Waits:
    """The waits of each item: all semaphores that the tiles it needs post, as few ranges as possible."""
    graph = dependencies.graph
    threshold = np.bincount(post_of_tile[post_of_tile >= 0], minlength=1)
    per_item = np.zeros(len(op), np.int64)  # wait class of each item; class 0 waits for nothing
    classes: list[Ints] = [np.zeros((0, 6), np.int64)]  # rows (class, first, count, stride, threshold, k)
    fresh = 1
    for c, consumer in enumerate(graph.ops):
        links = dependencies.into(c)
        mine = np.flatnonzero(op == c)
        if not links or not len(mine):
            continue
        coords = consumer.coords(tile[mine])
        bounds = [
            b
            for link in links
            for side in link.target.bounds(graph.tensor(link.tensor).shape, coords, k_lo[mine], k_hi[mine])
            for b in side.T
        ]
        first, cls = distinct(k_lo[mine], k_hi[mine], *bounds)
        row, needed, k = _needs(
            dependencies, c, coords[first], k_lo[mine][first], k_hi[mine][first], base, chunk_waits
        )
        semaphore = post_of_tile[needed]
        row, semaphore, k = row[semaphore >= 0], semaphore[semaphore >= 0], k[semaphore >= 0]
        order = np.lexsort((k, semaphore, row))  # the earliest use of each semaphore comes first
        row, semaphore, k = row[order], semaphore[order], k[order]
        keep = np.r_[True, (row[1:] != row[:-1]) | (semaphore[1:] != semaphore[:-1])][: len(row)]
        classes.append(_ranges(row[keep] + fresh, semaphore[keep], k[keep], threshold))
        per_item[mine] = cls + fresh
        fresh += len(first)
    table = np.concatenate(classes)
    sizes = np.bincount(table[:, 0], minlength=fresh)
    rows = Groups(offsets(sizes), np.arange(len(table), dtype=np.int64)).take(per_item)
    taken = table[rows.values]
    return Waits(rows.ptr, *(np.ascontiguousarray(taken[:, i]) for i in range(1, 6)))


def _needs(
    dependencies: Dependencies,
    consumer: int,
    coords: Ints,
    k_lo: Ints,
    k_hi: Ints,
    base: Ints,
    chunk_waits: bool,
) -> tuple[Ints, Ints, Ints]:
    """(row, producer tile over the whole graph, k before which it is needed) for n items."""
    graph = dependencies.graph
    reduction = graph.ops[consumer].reduction
    found: list[tuple[Ints, Ints, Ints]] = []
    for link in dependencies.into(consumer):
        row = np.arange(len(coords), dtype=np.int64)
        lo, hi = k_lo, k_hi
        if chunk_waits and link.target.uses_k and reduction:
            chunks = -(-(k_hi - k_lo) // reduction.block)
            lo = ranges(k_lo, chunks, reduction.block)
            row = np.repeat(row, chunks)
            hi = np.minimum(lo + reduction.block, k_hi[row])
        box_lo, box_hi = link.target.bounds(graph.tensor(link.tensor).shape, coords[row], lo, hi)
        first, box = distinct(*box_lo.T, *box_hi.T)
        tiles = dependencies.producers(link, box_lo[first], box_hi[first]).take(box)
        found.append((row[tiles.rows], base[link.producer] + tiles.values, lo[tiles.rows]))
    row, needed, k = (np.concatenate(column) for column in zip(*found, strict=True))
    return row, needed, k


def _ranges(row: Ints, semaphore: Ints, k: Ints, threshold: Ints) -> Ints:
    """Arithmetic runs of semaphores with equal row, k and threshold, ordered by row, then k."""
    order = np.lexsort((semaphore, k, row))
    out: list[tuple[int, int, int, int, int, int]] = []
    values = zip(row[order].tolist(), semaphore[order].tolist(), k[order].tolist(), threshold[semaphore[order]].tolist(), strict=True)
    for r, s, at, t in values:
        if out:
            r0, first, count, stride, t0, k0 = out[-1]
            if (r0, t0, k0) == (r, t, at) and (count == 1 or s == first + count * stride):
                out[-1] = (r0, first, count + 1, s - first if count == 1 else stride, t0, k0)
                continue
        out.append((r, s, 1, 1, t, at))
    return np.array(out, np.int64).reshape(-1, 6)


def _drop_unused(post: Ints, waits: Waits) -> tuple[Ints, Waits, int]:
    """Semaphores that nobody awaits are not posted; numbers start at the first awaited one."""
    used = np.unique(ranges(waits.first, waits.count, waits.stride))
    if not len(used):
        return np.full_like(post, -1), waits, 0
    post = np.where(np.isin(post, used), post - used[0], -1)
    return post, replace(waits, first=waits.first - used[0]), int(used[-1] - used[0]) + 1


def _workers(graph: Graph, choices: Choices, op: Ints, k_lo: Ints, k_hi: Ints) -> Ints:
    n = len(op)
    if choices.dispatch is Dispatch.TICKET:
        return np.full(n, -1, np.int64)
    if choices.assignment is Assignment.STRIPED:
        return np.arange(n, dtype=np.int64) % choices.workers
    flops = np.array([max(o.flops, 1.0) / o.k_extent for o in graph.ops])
    load = [(0.0, w) for w in range(choices.workers)]
    worker = np.empty(n, np.int64)
    for i, cost in enumerate((flops[op] * (k_hi - k_lo)).tolist()):
        busy, w = heapq.heappop(load)
        worker[i] = w
        heapq.heappush(load, (busy + cost, w))
    return worker
