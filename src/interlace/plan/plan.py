"""The plan: order, waits and posts of all items, as arrays.

Worked example, two ops of two tiles each, where tile 0 of ``b`` needs both tiles of ``a``, under RowSync:

    sequence   op  tile  k     waits                          post
    0          a   0     0:1                                  0
    1          a   1     0:1                                  0
    2          b   0     0:1   1 semaphore from 0, value 2
    3          b   1     0:1   1 semaphore from 0, value 2

A *wait* covers ``count`` semaphores ``first, first + stride, ...`` and ends when each has received
``threshold`` posts in this run. Semaphores are listed in ascending order: 5, 3, 1 is first 1, count 3, stride 2.
A wait takes place before element ``k`` of the item's reduction; at the item's ``k_lo`` (or below, down to 0) it
precedes the whole item. An item *posts* one semaphore when its tile is complete. The parts of a split tile name
the same semaphore, and only the last of them to finish posts it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from interlace.core.arguments import check_int, check_type
from interlace.core.errors import PlanError
from interlace.core.text import format_count
from interlace.graph.access import Ints
from interlace.graph.graph import Graph, to_data
from interlace.graph.ragged import compute_offsets, fold
from interlace.plan.stealing import STEAL_ONE, Stealing

FORMAT = "interlace-plan"
SCHEMA_VERSION = 1


class Dispatch(Enum):
    """Rule by which workers obtain items."""

    STATIC = "static"
    """Static schedule: each worker runs its own queue of items; all workers must be resident at once."""
    TICKET = "ticket"
    """Workers claim the next item of the sequence with a ticket from one atomic counter."""
    STEALING = "stealing"
    """Work stealing: each worker runs its own queue, then takes items from the front of other workers' queues, as
    ``Plan.stealing`` says; all workers must be resident at once."""
    QUEUE = "queue"
    """Workers claim the next item from a ready queue, which holds items in the order in which their waits are met."""
    DISPATCHER = "dispatcher"
    """A dispatcher that knows all dependencies assigns items whose waits are met to workers with room; all workers must
    be resident at once."""
    HYBRID = "hybrid"
    """Each worker runs its own queue; the last items of the sequence are in no queue, and workers whose queues are
    empty claim them by ticket. All workers must be resident at once."""

    SPAWN = "spawn"
    """Workers claim the next item from a queue, to which other items add the items that they spawn (``Op.when``). Items
    that nothing spawns do not run. Items that wait for spawned ones run, by ticket, once the queue is exhausted."""

    @property
    def has_queues(self) -> bool:
        """True if items, under HYBRID the first ones, name a worker whose queue they are in."""
        return self in (Dispatch.STATIC, Dispatch.STEALING, Dispatch.HYBRID)

    @property
    def has_resident_workers(self) -> bool:
        """True if all workers must be resident at once: an item assigned to one worker cannot be run by another."""
        return self.has_queues or self is Dispatch.DISPATCHER

    @property
    def can_reorder(self) -> bool:
        """True if items start when their waits are met, and so may overtake each other."""
        return self in (Dispatch.QUEUE, Dispatch.DISPATCHER)


class _Table:
    """Base of dataclasses of parallel integer columns: equality, and columns that cannot be written to.

    Columns are copied into bytes, from which NumPy makes no writable array. So a proof of a plan stays valid whoever
    made the columns, and ``setflags(write=True)`` is refused.
    """

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            try:
                column = np.array(getattr(self, f.name))
            except ValueError as error:
                name = type(self).__name__
                raise PlanError(f"{name}.{f.name} is no array ({error}); give it a column of int64") from None
            if column.dtype.hasobject or not column.ndim:
                what = "one number or text" if not column.ndim else "an array of objects"
                raise PlanError(f"{type(self).__name__}.{f.name} is {what}; give it a column of int64")
            frozen = np.frombuffer(column.tobytes(), column.dtype).reshape(column.shape)
            object.__setattr__(self, f.name, frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Items(_Table):
    """Items in sequence order, one entry per item in each column; columns are copied and read-only.

    Attributes:
        op: position of the op in the graph.
        tile: linear (row-major) tile number in the op's grid.
        k_lo, k_hi: k-range, the item's part of the reduction; ``[0, 1)`` for an op without one.
        worker: worker whose queue the item is in, -1 for none.
        post: semaphore that is posted when the tile is complete, -1 for none.
    """

    op: Ints
    tile: Ints
    k_lo: Ints
    k_hi: Ints
    worker: Ints
    post: Ints

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, eq=False)
class Waits(_Table):
    """Waits of all items; item ``i`` has rows ``ptr[i]:ptr[i + 1]``, ordered by ``k``. Columns are as in ``Items``.

    Attributes:
        ptr: prefix sum of each item's number of waits, with one more entry than there are items.
        first, count, stride: semaphores of each wait, in ascending order: ``stride`` is at least 1.
        threshold: posts per run that each of these semaphores must have received.
        k: element of the reduction before which the wait takes place.
    """

    ptr: Ints
    first: Ints
    count: Ints
    stride: Ints
    threshold: Ints
    k: Ints

    def __len__(self) -> int:
        return len(self.first)

    @property
    def item(self) -> Ints:
        """Owning item of each wait (CSR expansion)."""
        return np.repeat(np.arange(len(self.ptr) - 1, dtype=np.int64), np.diff(self.ptr))


@dataclass(frozen=True)
class Plan:
    """A schedule for one graph.

    Attributes:
        graph: graph to run.
        dispatch: rule by which workers obtain items.
        workers: number of workers that run at once.
        semaphores: number of 32-bit counters that a run needs.
        items, waits: tables of the items and of their waits.
        policy, order: display text about the schedule of the plan; nothing depends on it.
        stealing: rule by which a worker with an empty queue steals items, under STEALING.

    Raises:
        ArgumentError: a field of another type. Numbers may be NumPy integers.
    """

    graph: Graph
    dispatch: Dispatch
    workers: int
    semaphores: int
    items: Items
    waits: Waits
    policy: str = ""
    order: str = ""
    stealing: Stealing = STEAL_ONE

    def __post_init__(self) -> None:
        kinds = (("graph", Graph), ("dispatch", Dispatch), ("items", Items), ("waits", Waits), ("policy", str))
        for name, kind in (*kinds, ("order", str), ("stealing", Stealing)):
            check_type(getattr(self, name), kind, "Plan", name)
        for name in ("workers", "semaphores"):
            object.__setattr__(self, name, check_int(getattr(self, name), "Plan", name))

    def __str__(self) -> str:
        made = "; ".join(text for text in (self.policy, self.order) if text)
        counts = ", ".join(
            (
                f"{format_count(len(self.items), 'item')} on {format_count(self.workers, 'worker')}",
                f"{self.dispatch.value} dispatch",
                format_count(len(self.waits), "wait"),
                format_count(self.semaphores, "semaphore"),
            )
        )
        return f"plan of graph {self.graph.name!r}: {counts}" + (f" ({made})" if made else "")

    def format_tile(self, item: int) -> str:
        """Format the tile of an item for messages: ``op 'down', tile (3, 0)``."""
        return self.graph.ops[int(self.items.op[item])].format_tile(int(self.items.tile[item]))

    def format_item(self, item: int) -> str:
        """Format an item for messages: ``op 'down', tile (3, 0), k 0:512``."""
        k_lo, k_hi = int(self.items.k_lo[item]), int(self.items.k_hi[item])
        whole = (k_lo, k_hi) == (0, self.graph.ops[int(self.items.op[item])].k_extent)
        return self.format_tile(item) + ("" if whole else f", k {k_lo}:{k_hi}")

    def compute_tile_base(self) -> Ints:
        """Return the number of the first tile of each op when all tiles of the graph are numbered together."""
        return compute_offsets(np.array([op.tiles for op in self.graph.ops], np.int64))

    @property
    def tile_of_item(self) -> Ints:
        """Tile of each item, numbered as in ``compute_tile_base``."""
        return self.compute_tile_base()[self.items.op] + self.items.tile

    def to_json(self) -> str:
        """Serialise the plan and its graph to JSON; equal plans of kernels with the same bodies give equal text."""
        data = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "dispatch": self.dispatch.value,
            "workers": self.workers,
            "semaphores": self.semaphores,
            "policy": self.policy,
            "order": self.order,
            "graph": to_data(self.graph),
            "items": _list_columns(self.items),
            "waits": _list_columns(self.waits),
        }
        if self.dispatch is Dispatch.STEALING:
            data["stealing"] = {"most": self.stealing.most, "victim": self.stealing.victim.value}
        return json.dumps(data, separators=(",", ":")) + "\n"


def _list_columns(table: Items | Waits) -> dict[str, list[int]]:
    return {f.name: getattr(table, f.name).tolist() for f in fields(table)}


def find_last_posters(plan: Plan) -> Ints:
    """Return the last item that posts each semaphore, -1 if none does."""
    posting = np.flatnonzero(plan.items.post >= 0)
    last = np.full(plan.semaphores, -1, np.int64)
    np.maximum.at(last, plan.items.post[posting], posting)
    return last


def find_latest_awaited(plan: Plan) -> Ints:
    """Return the last item that posts a semaphore awaited by each item, -1 if the item waits for nothing."""
    waits = plan.waits
    awaited = fold(np.maximum, find_last_posters(plan), waits.first, waits.count, waits.stride)
    latest = np.full(len(plan.items), -1, np.int64)
    np.maximum.at(latest, waits.item, awaited)
    return latest
