"""A plan as the int32 tables that device code reads (layouts in ``kernels/primitives/semaphore``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import PlanError
from interlace.graph.access import Ints
from interlace.graph.ragged import distinct, offsets
from interlace.plan.plan import Dispatch, Plan

_INT32 = 1 << 31


@dataclass(frozen=True)
class Table:
    """Device tables of a plan.

    Attributes:
        items: (n, 16) int32 rows in launch order.
        waits: (w, 8) int32 rows, at least one.
        op_rows: rows of op o are ``op_rows[o]:op_rows[o + 1]`` if rows are grouped by op.
        workers: programs of a persistent launch: of a plan's workers those that can have an item.
        worker_rows: rows of each of them, if rows are grouped by worker.
        slots: workspace slots, one per part of a split tile.
        splits: split tiles, each with an arrival counter.
        parts: most parts of a tile, 1 if none is split; of each op.
        chunked: some wait stands inside a reduction.
    """

    items: NDArray[np.int32]
    waits: NDArray[np.int32]
    op_rows: Ints
    workers: int
    worker_rows: Ints
    slots: int
    splits: int
    parts: Ints
    chunked: bool


def by_op(plan: Plan, chunked: Sequence[bool]) -> Table:
    """Rows grouped by op, in sequence order within each: for a launch per op.

    ``chunked`` tells which ops' bodies wait inside their reductions; waits of others move to the item's start.
    """
    return _table(plan, chunked, np.argsort(plan.items.op, kind="stable"))


def for_workers(plan: Plan, chunked: Sequence[bool], posts_per_tile: int = 1) -> Table:
    """Rows in the order of tickets, or grouped by worker under static dispatch: for a persistent launch.

    Each of the warpgroups that share a tile posts, so a threshold counts ``posts_per_tile`` for each tile.
    """
    if plan.dispatch is Dispatch.TICKET:
        return _table(plan, chunked, np.arange(len(plan.items)), posts_per_tile)
    return _table(plan, chunked, np.argsort(plan.items.worker, kind="stable"))


def _table(plan: Plan, chunked: Sequence[bool], order: Ints, posts_per_tile: int = 1) -> Table:
    items, waits = plan.items, plan.waits
    n = len(items)
    # Parts of split tiles, numbered by k within a tile; slots run on from tile to tile.
    _, tile = distinct(items.op, items.tile)
    parts = np.bincount(tile)[tile]
    split_tiles, split = np.unique(tile[parts > 1], return_inverse=True)
    slot_of_tile = offsets(np.bincount(tile)[split_tiles])
    by_tile = np.lexsort((items.k_lo, tile))
    opens = np.r_[True, tile[by_tile][1:] != tile[by_tile][:-1]]
    part = np.empty(n, np.int64)
    part[by_tile] = np.arange(n) - np.maximum.accumulate(np.where(opens, np.arange(n), 0))

    worker_rows = offsets(np.unique(items.worker, return_counts=True)[1])
    static = plan.dispatch is Dispatch.STATIC

    row_item = np.repeat(np.arange(n), np.diff(waits.ptr))
    late = (waits.k > items.k_lo[row_item]) & np.array(chunked, bool)[items.op[row_item]]
    table = np.zeros((n, 16), np.int64)
    table[:, 0] = items.op
    for o, op in enumerate(plan.graph.ops):
        mine = items.op == o
        table[mine, 1 : 1 + len(op.grid)] = op.coords(items.tile[mine])
    table[:, 4], table[:, 5] = items.k_lo, items.k_hi
    table[:, 6], table[:, 8] = waits.ptr[:-1], waits.ptr[1:]
    table[:, 7] = waits.ptr[1:] - np.bincount(row_item[late], minlength=n)
    table[:, 9] = items.post
    table[:, 10], table[:, 11] = part, parts
    table[parts > 1, 12], table[parts > 1, 13] = slot_of_tile[:-1][split], split
    table[:, 14] = np.arange(n)
    rows = np.zeros((max(len(waits), 1), 8), np.int64)
    for column, values in enumerate(
        (waits.first, waits.count, waits.stride, waits.threshold * posts_per_tile, waits.k)
    ):
        rows[: len(waits), column] = values
    if max(table.max(), rows.max()) >= _INT32:
        raise PlanError("an extent or an index of the plan does not fit 32 bits; split the graph")
    return Table(
        np.ascontiguousarray(table[order], np.int32),
        rows.astype(np.int32),
        offsets(np.bincount(items.op, minlength=len(plan.graph.ops))),
        len(worker_rows) - 1 if static else min(plan.workers, n),
        worker_rows,
        int(slot_of_tile[-1]),
        len(split_tiles),
        np.array([parts[items.op == o].max(initial=1) for o in range(len(plan.graph.ops))]),
        bool(late.any()),
    )
