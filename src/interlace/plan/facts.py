"""Structural checks of a plan before anything is computed from it, and the lookup tables of the proofs.

Equal waits form one *class*. They stay ranges, because a plan of n items can wait for n semaphores each.

Columns hold arbitrary 64-bit numbers until they are checked. So the checks compare and divide, and never add or
multiply numbers that could wrap: ``waits.ptr`` of ``0, 2**63 - 1, -2, 0`` has differences that all wrap to small
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from interlace.core.errors import FaultLocation, ItemError, PlanError, SemaphoreError
from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, find_distinct, fold, group_by
from interlace.plan.plan import Dispatch, Items, Plan, Waits, find_last_posters

_INT32 = 1 << 31


class PlanIndex:
    """A plan whose arrays are well formed; whether it is safe is checked elsewhere.

    Attributes:
        plan: the plan.
        base: number of each op's first tile when all tiles of the graph are numbered together.
        tile_of_item: tile of each item, in this numbering.
        of_op: items of each op.
        parts: items of each tile, by k.
        post_of_tile: semaphore that each tile posts, -1 for none.
        wait_item, wait_class: item and class of each wait.
        wait_row: one wait of each class.
        low, count, step: semaphores of each class, ``low, low + step, ...``.
        wait_last: position of the last item that posts a semaphore of each class, -1 if none does.
        in_sequence: True if every item waits only for items earlier in the sequence.

    Raises:
        ItemError: items do not cover every tile and its reduction exactly once.
        SemaphoreError: an index out of range, or parts of a tile that post different semaphores.
        PlanError: malformed arrays.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        check_items(plan)
        self.base = plan.compute_tile_base()
        self.tile_of_item = plan.tile_of_item
        self.of_op = group_by(plan.items.op, len(plan.graph.ops))
        self.parts = self._group_parts()
        self.post_of_tile = plan.items.post[self.parts.values[self.parts.ptr[:-1]]]
        self._check_posts()
        self.wait_item = plan.waits.item
        self._check_waits()
        self._check_awaited()
        waits = plan.waits
        columns = waits.first, waits.count, np.where(waits.count == 1, 1, waits.stride)
        self.wait_row, self.wait_class = find_distinct(*columns, waits.threshold)
        self.low, self.count, self.step = (column[self.wait_row] for column in columns)
        self.wait_last = self.fold(np.maximum, find_last_posters(plan))
        self.in_sequence = bool((self.wait_last[self.wait_class] < self.wait_item).all())

    def slice_semaphores(self, cls: int) -> slice:
        """Return the semaphores of a class of waits."""
        low, count, step = int(self.low[cls]), int(self.count[cls]), int(self.step[cls])
        return slice(low, low + (count - 1) * step + 1, step)

    def fold(self, ufunc: np.ufunc, of_semaphore: Ints) -> Ints:
        """Reduce ``of_semaphore`` over the semaphores of each class with ``ufunc`` (minimum or maximum)."""
        return fold(ufunc, of_semaphore, self.low, self.count, self.step)

    def _group_parts(self) -> Groups:
        """Return the items of each tile by k, after the check that they cover its reduction exactly once."""
        plan, items = self.plan, self.plan.items
        ops = plan.graph.ops
        order = np.lexsort((items.k_lo, self.tile_of_item)).astype(np.int64)
        tile, k_lo, k_hi = self.tile_of_item[order], items.k_lo[order], items.k_hi[order]
        extent = np.array([op.k_extent for op in ops], np.int64)[items.op[order]]
        opens = np.r_[True, tile[1:] != tile[:-1]]
        present = tile[opens]
        if len(present) < self.base[-1]:
            # A damaged grid can have far more tiles than the plan has items, so tiles are not enumerated.
            gaps = np.flatnonzero(present != np.arange(len(present)))
            missing = int(gaps[0]) if len(gaps) else len(present)
            op = int(np.searchsorted(self.base, missing, side="right")) - 1
            place = missing - int(self.base[op])
            name = ops[op].format_tile(place)
            raise ItemError(f"{name} has no item; every tile needs at least one", FaultLocation(tile=(op, place)))
        closes = np.r_[opens[1:], True]
        bad = (k_lo != np.where(opens, 0, np.r_[0, k_hi[:-1]])) | (closes & (k_hi != extent))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ItemError(
                f"{plan.format_item(int(order[at]))}: the items of this tile do not cover its reduction "
                f"exactly once; make their k-ranges meet end to end from 0 to {int(extent[at])}",
                FaultLocation(tuple(order[tile == tile[at]].tolist())),
            )
        return Groups(np.r_[np.flatnonzero(opens), len(order)].astype(np.int64), order)

    def _check_posts(self) -> None:
        plan, post = self.plan, self.plan.items.post
        bad = (post < -1) | (post >= plan.semaphores)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise SemaphoreError(
                f"{plan.format_item(i)} posts semaphore {int(post[i])}, but the plan has {plan.semaphores}; "
                "post one of those or -1 for none, or raise Plan.semaphores",
                FaultLocation((i,)),
            )
        other = self.post_of_tile[self.tile_of_item]
        if (post != other).any():
            i = int(np.flatnonzero(post != other)[0])
            raise SemaphoreError(
                f"{plan.format_item(i)} posts semaphore {int(post[i])}, another part of the tile posts "
                f"{int(other[i])}; parts of one tile share one post",
                FaultLocation(tuple(np.flatnonzero(self.tile_of_item == self.tile_of_item[i]).tolist())),
            )

    def _check_waits(self) -> None:
        plan, items, waits, owner = self.plan, self.plan.items, self.plan.waits, self.wait_item
        block = np.array([op.reduction.block if op.reduction else 1 for op in plan.graph.ops], np.int64)
        bad = (waits.count < 1) | (waits.k < 0) | (waits.k >= items.k_hi[owner])
        bad[1:] |= (owner[1:] == owner[:-1]) & (waits.k[1:] < waits.k[:-1])
        bad |= (waits.k > items.k_lo[owner]) & (waits.k % block[items.op[owner]] != 0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise PlanError(
                f"{plan.format_item(int(owner[row]))}: wait {row} (count {int(waits.count[row])}, "
                f"k {int(waits.k[row])}) is malformed; waits of an item are sorted by k, lie on chunks "
                "inside its k-range, or at 0 or more before it, and cover at least one semaphore",
                FaultLocation((int(owner[row]),)),
            )

    def _check_awaited(self) -> None:
        """Check that every wait lists semaphores of the plan, in ascending order."""
        waits, n = self.plan.waits, self.plan.semaphores
        bad = (waits.stride < 1) | ((waits.count == 1) & (waits.stride > n))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise SemaphoreError(
                f"{self.plan.format_item(int(self.wait_item[row]))}: wait {row} has stride {int(waits.stride[row])}; "
                "list its semaphores upwards from the lowest one, with a stride of at least 1, a single one with 1",
                FaultLocation((int(self.wait_item[row]),)),
            )
        inside = (waits.first >= 0) & (waits.first < n)
        steps = (n - 1 - np.where(inside, waits.first, 0)) // waits.stride
        bad = ~inside | (waits.count > steps + 1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            outside = int(waits.first[row])
            if inside[row]:
                outside += (int(steps[row]) + 1) * int(waits.stride[row])
            raise SemaphoreError(
                f"{self.plan.format_item(int(self.wait_item[row]))} waits for semaphore {outside}, "
                f"but the plan has {n}; raise Plan.semaphores or mend the wait",
                FaultLocation((int(self.wait_item[row]),)),
            )


def check_items(plan: Plan) -> None:
    """Check that every item names an existing op, tile, k-range and worker, so that it can index arrays.

    Raises:
        ItemError, SemaphoreError, PlanError: as in ``PlanIndex``; an ItemError has a ``FaultLocation`` if its item
            names an existing op.
    """
    _check_tables(plan)
    _check_counts(plan)
    _check_locations(plan)


def _check_tables(plan: Plan) -> None:
    items, waits = plan.items, plan.waits
    tables: tuple[tuple[Items | Waits, str, int], ...] = (
        (items, "items", len(items)),
        (waits, "waits", len(waits)),
    )
    for table, name, length in tables:
        for f in fields(table):
            expected = len(items) + 1 if f.name == "ptr" else length
            column = getattr(table, f.name)
            if column.ndim != 1 or len(column) != expected:
                raise PlanError(
                    f"{name}.{f.name} has shape {column.shape}; expected ({expected},): give each of the "
                    f"{length} {name} an entry in every column, and waits.ptr one entry more than items"
                )
            if column.dtype != np.int64:
                raise PlanError(f"{name}.{f.name} holds {column.dtype}; make it an array of int64")
    rises = waits.ptr[1:] >= waits.ptr[:-1]
    if waits.ptr[0] != 0 or waits.ptr[-1] != len(waits) or not rises.all():
        at = 0 if waits.ptr[0] != 0 else int(np.flatnonzero(~np.r_[rises, False])[0]) + 1
        at = min(at, len(items))
        raise PlanError(
            f"waits.ptr must rise from 0 to {len(waits)}, but entry {at} is {int(waits.ptr[at])}; "
            "let entry i be the first wait of item i, and the last entry the number of waits"
        )


def _check_counts(plan: Plan) -> None:
    if not 1 <= plan.workers < _INT32:
        raise PlanError(f"plan has {plan.workers} workers; set Plan.workers to at least one, and to fewer than 2^31")
    tiles = sum(op.tiles for op in plan.graph.ops)
    if not 0 <= plan.semaphores <= tiles:
        raise SemaphoreError(
            f"plan has {plan.semaphores} semaphores for {tiles} tiles, and a tile posts at most one; "
            "set Plan.semaphores to the highest one posted plus one"
        )


def _check_locations(plan: Plan) -> None:
    """Check that every item lies in its op's grid and reduction, and has a worker exactly if dispatch assigns one."""
    items, ops = plan.items, plan.graph.ops
    if not len(items):
        raise ItemError("plan has no items; every tile of the graph needs at least one")
    outside = (items.op < 0) | (items.op >= len(ops))
    if outside.any():
        i = int(np.flatnonzero(outside)[0])
        raise ItemError(
            f"item {i} names op {int(items.op[i])}, but graph {plan.graph.name!r} has ops 0..{len(ops) - 1}; "
            "let it name one of them"
        )
    tiles = np.array([op.tiles for op in ops], np.int64)[items.op]
    extent = np.array([op.k_extent for op in ops], np.int64)[items.op]
    block = np.array([op.reduction.block if op.reduction else 1 for op in ops], np.int64)[items.op]
    checks: list[tuple[np.ndarray, Callable[[int], str]]] = [
        (
            (items.tile < 0) | (items.tile >= tiles),
            lambda i: f"lies outside its op's grid; name a tile of 0..{int(tiles[i]) - 1}",
        ),
        (
            (items.k_lo < 0) | (items.k_lo >= items.k_hi) | (items.k_hi > extent),
            lambda i: f"has a k-range outside its reduction; give it a part of 0:{int(extent[i])}, not empty",
        ),
        (
            (items.k_lo % block != 0) | ((items.k_hi % block != 0) & (items.k_hi != extent)),
            lambda i: f"splits its reduction inside a chunk; split at multiples of the block, {int(block[i])}",
        ),
    ]
    if plan.dispatch is Dispatch.HYBRID:
        late = np.maximum.accumulate(items.worker < 0)  # from the first item without a worker on
        checks.append(
            (
                (items.worker < -1) | (items.worker >= plan.workers) | (late != (items.worker < 0)) | late[:1],
                lambda i: (
                    f"has worker {int(items.worker[i])}, but under hybrid dispatch the first items name one of "
                    f"0..{plan.workers - 1}, at least one of them, and all after these -1; deal items from the "
                    "first on"
                ),
            )
        )
    elif plan.dispatch.has_queues:
        checks.append(
            (
                (items.worker < 0) | (items.worker >= plan.workers),
                lambda i: (
                    f"has a worker out of range, {int(items.worker[i])}; "
                    f"name one of 0..{plan.workers - 1} or raise Plan.workers"
                ),
            )
        )
    else:
        checks.append(
            (
                items.worker != -1,
                lambda i: (
                    f"names a worker, but {plan.dispatch.value} dispatch decides that at run time; "
                    "set it to -1 or use Dispatch.STATIC"
                ),
            )
        )
    for bad, what in checks:
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ItemError(
                f"item {i} (op {ops[int(items.op[i])].name!r}, tile number {int(items.tile[i])}, "
                f"k {int(items.k_lo[i])}:{int(items.k_hi[i])}) {what(i)}",
                FaultLocation((i,)),
            )
