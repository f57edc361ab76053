"""Items that other items spawn: the spawner of each, and the items that run before and after them.

An op with ``when`` has a tile for each item that may ever run, and data decide which of them do: an item runs if the
element that its ``when`` reads is not 0. The last item to write the element *spawns* it. Under spawn dispatch, items
that nothing spawns never run. Their outputs are 0 already, because the executor clears these tensors ahead of the run.

    op      tile    reads of "wanted"    writes of "wanted"     runs
    root    0       none                 0, 1                   ``before``: in any case, first
    leaf    0, 1    0; 1                 none                   if root's values request it: root spawns it
    sum     0       none                 none                   ``after``: reads outputs of leaves, so after them all

Spawn dispatch guarantees that an item runs exactly if it is requested (its element is not 0), once, and before every
item that reads its outputs. The rules below, which ``Spawns.from_plan`` checks, imply this:

1. Each spawned item has one spawner: the last item that writes the element before its op. The spawner has written the
   element when it looks at it, and later writers of the element wait for the spawned item (``coverage``). So the item
   enters the queue exactly if it is requested, and once.
2. A spawner runs while workers take items from the queue: it is in ``before``, or is spawned itself. Items in
   ``after`` spawn nothing, because workers have left the queue by then.
3. A spawned item waits only for items in ``before`` and for its ancestors (its spawner, that item's spawner, ...),
   which have ended when it is spawned. So no item in the queue waits for one that may never run, and the queue drains.
4. An item that waits for an item that may never run is in ``after``, as is one that waits for an item in ``after``.
   These run after the queue is empty, in sequence, and wait only for earlier ones. So they read after everything that
   they depend on, and terminate.
5. A semaphore is posted only by spawned items or only by others, so it is known which semaphores may lack posts of
   items that never ran.
6. No earlier op writes the outputs of a spawned item, and no input of the graph holds them. So they are 0 if it never
   runs.

The queue thus receives each item in ``before`` once, and each spawned item at most once, from its spawner. It never
receives more items than the plan has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import int32
from interlace.core.errors import FaultLocation, SpawnError
from interlace.graph.access import Ints
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, group_by
from interlace.plan.plan import Plan


@dataclass(frozen=True)
class Spawns:
    """Spawn relation of a plan under spawn dispatch; items are positions in its sequence.

    Attributes:
        spawner: item that spawns each item, -1 if it runs in any case.
        element: element of the ``when`` tensor that decides on each spawned item, in row-major order; else -1.
        children: items that each item may spawn, in sequence.
        before, after: items that run in any case, before and after the spawned ones, in sequence.
    """

    spawner: Ints
    element: Ints
    children: Groups
    before: Ints
    after: Ints

    @property
    def capacity(self) -> int:
        """Maximum number of items that enter the queue."""
        return len(self.before) + int((self.spawner >= 0).sum())

    @staticmethod
    def from_plan(plan: Plan) -> Spawns:
        """Derive the relation for a plan whose items and waits are well formed, and wait for earlier items only.

        Raises:
            SpawnError: one of the rules of this module is violated, or an item is a part of a tile.
        """
        n, graph = len(plan.items), plan.graph
        spawner, element = np.full((2, n), -1, np.int64)
        whole = np.array([op.k_extent for op in graph.ops])[plan.items.op]
        split = np.flatnonzero(plan.items.k_hi - plan.items.k_lo < whole)
        if len(split):
            raise SpawnError(
                f"{plan.format_item(int(split[0]))} is a part of a tile, and under spawn dispatch items are whole "
                "tiles; plan with WholeTiles()",
                FaultLocation((int(split[0]),)),
            )
        for item, by, at in _iter_spawned(plan):
            spawner[item], element[item] = by, at
        kinds = _check_waits(plan, spawner)
        children = group_by(np.where(spawner < 0, n, spawner), n + 1)
        return Spawns(
            spawner,
            element,
            Groups(children.ptr[:-1], children.values[: int(children.ptr[-2])]),
            np.flatnonzero(kinds == _BEFORE),
            np.flatnonzero(kinds == _AFTER),
        )


_BEFORE, _SPAWNED, _AFTER = range(3)


def find_when_tensor(op: Op) -> str:
    """Return the name of the tensor that decides which tiles of an op run."""
    return next(access.tensor for access in op.reads if access.arg == op.when)


def find_cleared_tensors(graph: Graph) -> tuple[str, ...]:
    """Return the names of the tensors that are 0 where items did not run."""
    return tuple(dict.fromkeys(access.tensor for op in graph.ops if op.when for access in op.writes))


def _iter_spawned(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Yield (item, spawner, element of the ``when`` tensor) for each item that is spawned."""
    graph, items = plan.graph, plan.items
    zero = {*find_cleared_tensors(graph)}
    kept = zero | {find_when_tensor(op) for op in graph.ops if op.when}
    writer = {name: np.full(graph.tensor(name).shape, -1, np.int64) for name in kept}
    for o, op in enumerate(graph.ops):
        mine = np.flatnonzero(items.op == o)
        item_of = np.empty(op.tiles, np.int64)
        item_of[items.tile[mine]] = mine
        if op.when:
            yield from _iter_spawned_of_op(plan, op, item_of, writer)
        for access in op.writes:
            if access.tensor not in kept:
                continue
            owners = writer[access.tensor]
            low, high = access.compute_bounds(owners.shape, op.compute_coords(), *_compute_k_ranges(op))
            for tile, (lo, hi) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
                part = owners[tuple(map(slice, lo, hi))]
                if op.when and (access.tensor in graph.inputs or (part >= 0).any()):
                    raise SpawnError(
                        f"{op.format_tile(tile)} may not run, and then leaves 0 in {access.tensor!r}, which is there "
                        "before or written by an op before it; let it write a tensor of its own",
                        FaultLocation((int(item_of[tile]),)),
                    )
                part[...] = item_of[tile]


def _iter_spawned_of_op(plan: Plan, op: Op, item_of: Ints, writer: dict[str, Ints]) -> Iterator[tuple[int, int, int]]:
    name = find_when_tensor(op)
    tensor, owners = plan.graph.tensor(name), writer[name]
    access = next(access for access in op.reads if access.arg == op.when)
    low, high = access.compute_bounds(tensor.shape, op.compute_coords(), *_compute_k_ranges(op))
    if tensor.dtype is not int32 or (high - low != 1).any():
        raise SpawnError(
            f"op {op.name!r} reads {access} of {tensor} to know whether a tile runs; let each tile read one element of "
            "an int32 tensor"
        )
    at = np.ravel_multi_index(tuple(low.T), tensor.shape)
    by = owners.reshape(-1)[at]
    nobody = np.flatnonzero(by < 0)
    if len(nobody):
        tile = int(nobody[0])
        raise SpawnError(
            f"nobody spawns {op.format_tile(tile)}: no op before writes element {low[tile].tolist()} of {name!r}, by "
            "which it runs; let one write it, or use another dispatch",
            FaultLocation((int(item_of[tile]),)),
        )
    yield from zip(item_of.tolist(), by.tolist(), at.tolist(), strict=True)


def _compute_k_ranges(op: Op) -> tuple[Ints, Ints]:
    return np.zeros(op.tiles, np.int64), np.full(op.tiles, op.k_extent, np.int64)


def _check_waits(plan: Plan, spawner: Ints) -> Ints:
    """Classify each item (before, spawned or behind), after the check that it waits only for items that it may."""
    items, waits = plan.items, plan.waits
    kinds = np.where(spawner >= 0, _SPAWNED, _BEFORE).astype(np.int64)
    spawned = mark_posted(plan, kinds == _SPAWNED)
    posters = group_by(np.where(items.post < 0, plan.semaphores, items.post), plan.semaphores + 1)
    late = spawned.copy()  # semaphores that spawned items, or items in ``after``, post
    for item in range(len(items)):
        awaited = [list_awaited(plan, row) for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1]))]
        awaited = [some[late[some]] for some in awaited]
        if kinds[item] == _SPAWNED:
            _check_ancestors(plan, spawner, item, [int(by) for some in awaited for s in some for by in posters[s]])
        elif any(map(len, awaited)):
            kinds[item] = _AFTER
            if items.post[item] >= 0:
                late[items.post[item]] = True
    late_spawner = np.flatnonzero((spawner >= 0) & (kinds[spawner] == _AFTER))
    if len(late_spawner):
        child = int(late_spawner[0])
        by = int(spawner[child])
        raise SpawnError(
            f"{plan.format_item(child)} is spawned by {plan.format_item(by)}, which waits for items that may never run "
            "and so runs when the queue is closed; let an item that waits for none of them write what says so, or use "
            "another dispatch",
            FaultLocation((child,), (by,)),
        )
    both = np.flatnonzero(spawned & mark_posted(plan, kinds != _SPAWNED))
    if len(both):
        own = np.flatnonzero(items.post == both[0])
        one, other = int(own[kinds[own] == _SPAWNED][0]), int(own[kinds[own] != _SPAWNED][0])
        raise SpawnError(
            f"{plan.format_item(one)} and {plan.format_item(other)} post one semaphore, and the former may never run; "
            "plan their ops with TileSync()",
            FaultLocation((one, other)),
        )
    return kinds


def mark_posted(plan: Plan, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return True for each semaphore that one of the ``some`` items posts."""
    found = np.zeros(plan.semaphores, np.bool_)
    found[plan.items.post[some & (plan.items.post >= 0)]] = True
    return found


def list_awaited(plan: Plan, row: int) -> Ints:
    """Return the semaphores of a wait."""
    waits = plan.waits
    return np.asarray(waits.first[row] + waits.stride[row] * np.arange(waits.count[row]), np.int64)


def _check_ancestors(plan: Plan, spawner: Ints, item: int, posters: Iterable[int]) -> None:
    """Check that all posters are ancestors of the item in the spawn relation.

    Raises:
        SpawnError: one is not.
    """
    line, by = set(), int(spawner[item])
    while by >= 0:
        line.add(by)
        by = int(spawner[by])
    other = [by for by in posters if by not in line]
    if other:
        raise SpawnError(
            f"{plan.format_item(item)} waits for {plan.format_item(other[0])}, which may not run before it; under "
            "spawn dispatch let an item wait for those alone that it is spawned by: plan their ops with TileSync()",
            FaultLocation((item,), (other[0],)),
        )
