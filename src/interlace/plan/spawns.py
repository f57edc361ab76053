"""Items that other items spawn: who spawns which, and what runs before and after them.

An op with ``when`` has a tile for each item that may ever run, and data decide which of them do: an item runs if the
element that its ``when`` reads is not 0. The item that writes the element last *spawns* it. Under spawn dispatch the
others never run; all that they would write is 0 already, since the executor clears it ahead of the run.

    op      tile    reads of "wanted"    writes of "wanted"     runs
    root    0       none                 0, 1                   ``before``: in any case, first
    leaf    0, 1    0; 1                 none                   if root says so: spawned by it
    sum     0       none                 none                   ``behind``: reads what leaves wrote, so after them all

What spawn dispatch promises: an item runs exactly if it is wanted, once, and before every item that reads what it
writes. The rules below, which ``Spawns.of`` checks, imply it:

1. One item spawns each spawned item: the last that writes the element before its op. It has written the element when
   it looks, and what overwrites the element later waits for the spawned item (``coverage``). So the item comes to the
   queue exactly if it is wanted, and once.
2. Whoever spawns runs while the queue is looked at: it runs before, or is spawned itself. What runs behind looks at no
   children, as workers have left the queue by then.
3. A spawned item waits only for items before, and for those that it is descended from, which are over when it is
   spawned. So no item of the queue is held up by one that may never run, and the queue empties.
4. Who waits for an item that may never run is behind, as is who waits for one behind. These run when the queue is
   empty, in sequence, and wait only for earlier ones. So they read after all that they depend on, and end.
5. A semaphore is posted by spawned items alone or by others alone, so that posts of items that never ran are known.
6. What a spawned item writes, nothing has written before and no input holds. So 0 is what it leaves if it never runs.

So the items of a queue are those before, each once, and of the others each at most once, by the one that spawns it:
there are never more than the plan has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import int32
from interlace.core.errors import Place, SpawnError
from interlace.graph.access import Ints
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, grouped
from interlace.plan.plan import Plan


@dataclass(frozen=True)
class Spawns:
    """Of a plan under spawn dispatch; items are positions in its sequence.

    Attributes:
        spawner: of each item, the one that spawns it, -1 if it runs in any case.
        element: of each item that is spawned, the element of its ``when`` tensor, in row-major order; else -1.
        children: of each item, those that it may spawn, in sequence.
        before, behind: items that run in any case, in sequence.
    """

    spawner: Ints
    element: Ints
    children: Groups
    before: Ints
    behind: Ints

    @property
    def capacity(self) -> int:
        """Items that come to the queue at most."""
        return len(self.before) + int((self.spawner >= 0).sum())

    @staticmethod
    def of(plan: Plan) -> Spawns:
        """Of a plan whose items and waits make sense, and wait for earlier items only.

        Raises:
            SpawnError: one of the rules above does not hold; or an item is a part of a tile.
        """
        n, graph = len(plan.items), plan.graph
        spawner, element = np.full((2, n), -1, np.int64)
        whole = np.array([op.k_extent for op in graph.ops])[plan.items.op]
        split = np.flatnonzero(plan.items.k_hi - plan.items.k_lo < whole)
        if len(split):
            raise SpawnError(
                f"{plan.item_name(int(split[0]))} is a part of a tile, and under spawn dispatch items are whole tiles; "
                "plan with Whole()",
                Place((int(split[0]),)),
            )
        for item, by, at in _spawned(plan):
            spawner[item], element[item] = by, at
        kinds = _check_waits(plan, spawner)
        children = grouped(np.where(spawner < 0, n, spawner), n + 1)
        return Spawns(
            spawner,
            element,
            Groups(children.ptr[:-1], children.values[: int(children.ptr[-2])]),
            np.flatnonzero(kinds == _BEFORE),
            np.flatnonzero(kinds == _BEHIND),
        )


_BEFORE, _SPAWNED, _BEHIND = range(3)


def when_tensor(op: Op) -> str:
    """The tensor that says which tiles of an op run."""
    return next(access.tensor for access in op.reads if access.arg == op.when)


def cleared(graph: Graph) -> tuple[str, ...]:
    """Tensors that are 0 where items did not run."""
    return tuple(dict.fromkeys(access.tensor for op in graph.ops if op.when for access in op.writes))


def _spawned(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Items that are spawned, with by whom, and the element that says so."""
    graph, items = plan.graph, plan.items
    zero = {*cleared(graph)}
    kept = zero | {when_tensor(op) for op in graph.ops if op.when}
    writer = {name: np.full(graph.tensor(name).shape, -1, np.int64) for name in kept}
    for o, op in enumerate(graph.ops):
        mine = np.flatnonzero(items.op == o)
        item_of = np.empty(op.tiles, np.int64)
        item_of[items.tile[mine]] = mine
        if op.when:
            yield from _of_op(plan, op, item_of, writer)
        for access in op.writes:
            if access.tensor not in kept:
                continue
            owners = writer[access.tensor]
            low, high = access.bounds(owners.shape, op.coords(), *_whole(op))
            for tile, (lo, hi) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
                part = owners[tuple(map(slice, lo, hi))]
                if op.when and (access.tensor in graph.inputs or (part >= 0).any()):
                    raise SpawnError(
                        f"{op.tile_name(tile)} may not run, and then leaves 0 in {access.tensor!r}, which is there "
                        "before or written by an op before it; let it write a tensor of its own",
                        Place((int(item_of[tile]),)),
                    )
                part[...] = item_of[tile]


def _of_op(plan: Plan, op: Op, item_of: Ints, writer: dict[str, Ints]) -> Iterator[tuple[int, int, int]]:
    name = when_tensor(op)
    tensor, owners = plan.graph.tensor(name), writer[name]
    access = next(access for access in op.reads if access.arg == op.when)
    low, high = access.bounds(tensor.shape, op.coords(), *_whole(op))
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
            f"nobody spawns {op.tile_name(tile)}: no op before writes element {low[tile].tolist()} of {name!r}, by "
            "which it runs; let one write it, or use another dispatch",
            Place((int(item_of[tile]),)),
        )
    yield from zip(item_of.tolist(), by.tolist(), at.tolist(), strict=True)


def _whole(op: Op) -> tuple[Ints, Ints]:
    return np.zeros(op.tiles, np.int64), np.full(op.tiles, op.k_extent, np.int64)


def _check_waits(plan: Plan, spawner: Ints) -> Ints:
    """Of each item whether it runs before, is spawned, or runs behind; all wait for what they may."""
    items, waits = plan.items, plan.waits
    kinds = np.where(spawner >= 0, _SPAWNED, _BEFORE).astype(np.int64)
    spawned = posted_by(plan, kinds == _SPAWNED)
    posters = grouped(np.where(items.post < 0, plan.semaphores, items.post), plan.semaphores + 1)
    late = spawned.copy()  # semaphores that items post which are spawned, or run behind
    for item in range(len(items)):
        awaited = [awaits(plan, row) for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1]))]
        awaited = [some[late[some]] for some in awaited]
        if kinds[item] == _SPAWNED:
            _check_line(plan, spawner, item, [int(by) for some in awaited for s in some for by in posters[s]])
        elif any(map(len, awaited)):
            kinds[item] = _BEHIND
            if items.post[item] >= 0:
                late[items.post[item]] = True
    late_spawner = np.flatnonzero((spawner >= 0) & (kinds[spawner] == _BEHIND))
    if len(late_spawner):
        child = int(late_spawner[0])
        by = int(spawner[child])
        raise SpawnError(
            f"{plan.item_name(child)} is spawned by {plan.item_name(by)}, which waits for items that may never run and "
            "so runs when the queue is closed; let an item that waits for none of them write what says so, or use "
            "another dispatch",
            Place((child,), (by,)),
        )
    both = np.flatnonzero(spawned & posted_by(plan, kinds != _SPAWNED))
    if len(both):
        own = np.flatnonzero(items.post == both[0])
        one, other = int(own[kinds[own] == _SPAWNED][0]), int(own[kinds[own] != _SPAWNED][0])
        raise SpawnError(
            f"{plan.item_name(one)} and {plan.item_name(other)} post one semaphore, and the former may never run; plan "
            "their ops with TileSync()",
            Place((one, other)),
        )
    return kinds


def posted_by(plan: Plan, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of each semaphore whether one of some items posts it."""
    found = np.zeros(plan.semaphores, np.bool_)
    found[plan.items.post[some & (plan.items.post >= 0)]] = True
    return found


def awaits(plan: Plan, row: int) -> Ints:
    """The semaphores of a wait."""
    waits = plan.waits
    return np.asarray(waits.first[row] + waits.stride[row] * np.arange(waits.count[row]), np.int64)


def _check_line(plan: Plan, spawner: Ints, item: int, posters: Iterable[int]) -> None:
    """All of these are among those that an item is descended from."""
    line, by = set(), int(spawner[item])
    while by >= 0:
        line.add(by)
        by = int(spawner[by])
    other = [by for by in posters if by not in line]
    if other:
        raise SpawnError(
            f"{plan.item_name(item)} waits for {plan.item_name(other[0])}, which may not run before it; under spawn "
            "dispatch let an item wait for those alone that it is spawned by: plan their ops with TileSync()",
            Place((item,), (other[0],)),
        )
