"""A plan as the int32 tables that device code reads (layouts in ``kernels/abi``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import PlanError
from interlace.graph.access import Ints
from interlace.graph.ragged import compute_offsets, find_distinct
from interlace.kernels.abi import AXES, ITEM, WAIT, Struct
from interlace.megakernel.fix_up import CooperativeFixup
from interlace.megakernel.ll_edges import NO_LL_EDGES, LLEdges
from interlace.plan.plan import Dispatch, Plan

_INT32 = 1 << 31


@dataclass(frozen=True)
class DeviceTables:
    """Device tables of a plan.

    Attributes:
        items: (n,) rows of ``abi.ITEM`` in launch order.
        waits: (w,) rows of ``abi.WAIT``, at least one.
        op_rows: CSR offsets: rows of op o are ``op_rows[o]:op_rows[o + 1]`` if rows are grouped by op.
        workers: programs of a persistent launch: those of the plan's workers that can have an item.
        worker_rows: CSR offsets of each worker's rows if rows are grouped by worker; items in no queue come last.
        slots: number of workspace slots, one per part of a split tile.
        splits: number of split tiles; each has an arrival counter unless parts wait for each other.
        semaphores: number of semaphores: the plan's, and one per split tile to count parts that wait for each other.
        parts: most parts of a tile of each op, 1 if none is split.
        is_chunked: True if some wait is inside a reduction.
    """

    items: NDArray[np.void]
    waits: NDArray[np.void]
    op_rows: Ints
    workers: int
    worker_rows: Ints
    slots: int
    splits: int
    semaphores: int
    parts: Ints
    is_chunked: bool

    @property
    def min_extents(self) -> Ints:
        """Extent along k of each op's shortest item; 0 for an op without items."""
        found = np.full(len(self.parts), _INT32, np.int64)
        np.minimum.at(found, self.items["op"], self.items["k_hi"] - self.items["k_lo"])
        return np.where(found < _INT32, found, 0)

    @property
    def last_of_op_mask(self) -> NDArray[np.bool_]:
        """Mask of rows that post and are followed, on the same worker, by a row of another op."""
        op = self.items["op"]
        last = np.r_[op[1:] != op[:-1], False]
        last[self.worker_rows[1:] - 1] = False
        found: NDArray[np.bool_] = last & self._post_mask
        return found

    @property
    def same_op_mask(self) -> NDArray[np.bool_]:
        """Mask of rows that follow, on the same worker, a row of the same op."""
        op = self.items["op"]
        same: NDArray[np.bool_] = np.r_[False, op[1:] == op[:-1]]
        same[self.worker_rows[:-1][np.diff(self.worker_rows) > 0]] = False
        return same

    @property
    def last_wave_mask(self) -> NDArray[np.bool_]:
        """Mask, under ticket dispatch, of rows that post in the last wave of an op that other ops follow.

        After such a row, its worker rarely has another item of the op.
        """
        op = self.items["op"]
        by_op = np.argsort(op, kind="stable")
        follow = np.empty(len(op), np.int64)  # number of later rows of the same op
        follow[by_op] = np.bincount(op).cumsum()[op[by_op]] - 1 - np.arange(len(op))
        wave = np.bincount(op)[op] - follow - 1 >= (np.bincount(op)[op] - 1) // self.workers * self.workers
        found: NDArray[np.bool_] = wave & (np.arange(len(op)) + follow + 1 < len(op)) & self._post_mask
        return found

    @property
    def last_waiting_mask(self) -> NDArray[np.bool_]:
        """Mask, under ticket dispatch, of the rows that wait among the last ``workers`` rows."""
        waits: NDArray[np.bool_] = self.items["wait_hi"] > self.items["wait_lo"]
        waits[: -self.workers] = False
        return waits

    @property
    def _post_mask(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.items["post"] >= 0
        return found


def build_op_tables(plan: Plan, chunked: Sequence[bool]) -> DeviceTables:
    """Return the table for a launch per op: rows grouped by op, in sequence order within each.

    Args:
        chunked: for each op, True if its body waits inside its reduction; waits of others move to the item's start.
    """
    return _build_tables(plan, chunked, np.argsort(plan.items.op, kind="stable"))


def build_worker_tables(
    plan: Plan,
    chunked: Sequence[bool],
    *,
    parts_wait: bool = False,
    cooperative: CooperativeFixup | None = None,
    ll_edges: LLEdges = NO_LL_EDGES,
) -> DeviceTables:
    """Return the table for a persistent launch: rows in ticket order, or grouped by worker under per-worker queues.

    Args:
        chunked: as for ``build_op_tables``.
        parts_wait: True to let the last part of a split tile, in the plan's sequence, wait for the other parts. Their
            semaphores are numbered after the plan's. Column ``split`` holds the tile's semaphore, with all bits
            inverted in the last part. In a plan whose items wait only for earlier ones, so do these parts, and progress
            is preserved; for other plans see ``parts.check_order``.
        cooperative: ops in which each part waits for all others, as the last part does elsewhere.
        ll_edges: tensors that use the LL protocol, for which no item waits.
    """
    worker = plan.items.worker
    order = np.argsort(np.where(worker < 0, _INT32, worker), kind="stable")  # items in no queue come last
    return _build_tables(plan, chunked, order, parts_wait, cooperative, ll_edges)


def _build_tables(
    plan: Plan,
    chunked: Sequence[bool],
    order: Ints,
    parts_wait: bool = False,
    cooperative: CooperativeFixup | None = None,
    ll_edges: LLEdges = NO_LL_EDGES,
) -> DeviceTables:
    items, waits = (
        plan.items,
        ll_edges.drop_polled_waits(plan.waits if cooperative is None else cooperative.waits, plan),
    )
    n = len(items)
    # Parts of split tiles are numbered by k within a tile; slots are numbered through all tiles.
    _, tile = find_distinct(items.op, items.tile)
    parts = np.bincount(tile)[tile]
    split_tiles, split = np.unique(tile[parts > 1], return_inverse=True)
    slot_of_tile = compute_offsets(np.bincount(tile)[split_tiles])
    by_tile = np.lexsort((items.k_lo, tile))
    opens = np.r_[True, tile[by_tile][1:] != tile[by_tile][:-1]]
    part = np.empty(n, np.int64)
    part[by_tile] = np.arange(n) - np.maximum.accumulate(np.where(opens, np.arange(n), 0))

    worker_rows = compute_offsets(np.unique(items.worker[items.worker >= 0], return_counts=True)[1])
    workers = len(worker_rows) - 1 if plan.dispatch.has_queues else min(plan.workers, n)
    if worker_rows[-1] < n or plan.dispatch is Dispatch.HYBRID:
        worker_rows = np.r_[worker_rows, n]

    row_item = waits.item
    late = (waits.k > items.k_lo[row_item]) & np.array(chunked, bool)[items.op[row_item]]
    at = np.zeros((len(AXES), n), np.int64)
    for o, op in enumerate(plan.graph.ops):
        mine = items.op == o
        at[: len(op.grid), mine] = op.compute_coords(items.tile[mine]).T
    slots, splits = np.zeros((2, n), np.int64)
    slots[parts > 1], splits[parts > 1] = slot_of_tile[:-1][split], split
    if parts_wait:
        splits[parts > 1] = plan.semaphores + splits[parts > 1]
        last = np.zeros(n, np.int64)
        np.maximum.at(last, tile, np.arange(n))
        closes = (parts > 1) & (last[tile] == np.arange(n))
        if cooperative is not None:
            closes |= np.isin(items.op, [*cooperative.ops])
        splits[closes] = ~splits[closes]
    rows = {
        "op": items.op,
        **dict(zip(AXES, at, strict=True)),
        "k_lo": items.k_lo,
        "k_hi": items.k_hi,
        "wait_lo": waits.ptr[:-1],
        "wait_mid": waits.ptr[1:] - np.bincount(row_item[late], minlength=n),
        "wait_hi": waits.ptr[1:],
        "post": ll_edges.compute_posts(waits, plan),
        "part": part,
        "parts": parts,
        "slot": slots,
        "split": splits,
        "number": np.arange(n),
        "code": np.zeros(n, np.int64),
    }
    ranges = {
        "first": waits.first,
        "count": waits.count,
        "stride": waits.stride,
        "threshold": waits.threshold,
        "k": waits.k,
    }
    return DeviceTables(
        _build_rows(ITEM, {name: values[order] for name, values in rows.items()}),
        _build_rows(WAIT, ranges),
        compute_offsets(np.bincount(items.op, minlength=len(plan.graph.ops))),
        workers,
        worker_rows,
        int(slot_of_tile[-1]),
        len(split_tiles),
        plan.semaphores + (len(split_tiles) if parts_wait else 0),
        np.array([parts[items.op == o].max(initial=1) for o in range(len(plan.graph.ops))]),
        bool(late.any()),
    )


def _build_rows(row: Struct, columns: Mapping[str, Ints]) -> NDArray[np.void]:
    """Return a table of these columns, with at least one row."""
    values = {name: columns[name] for name in row.names}
    if any(column.max(initial=0) >= _INT32 for column in values.values()):
        raise PlanError("an extent or an index of the plan does not fit 32 bits; split the graph")
    count = max(len(column) for column in values.values())
    table = np.zeros(max(count, 1), row.dtype)
    for name, column in values.items():
        table[name][:count] = column
    return table
