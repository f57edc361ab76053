"""A schedule: everything that a plan is built from, besides the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TypeVar

from interlace.core.arguments import check_int, check_type
from interlace.graph.op import Param
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import STEAL_ONE, Stealing
from interlace.policies.interleavings import Interleaving, OpAfterOp
from interlace.policies.orders import GroupedColumnMajor, Order, RowMajor
from interlace.policies.splits import Split, SplitK, SplitTail, WholeTiles
from interlace.policies.sync import SyncPolicy, TileSync
from interlace.policies.tiling import OpTiling

T = TypeVar("T")


class Assignment(Enum):
    """How items are assigned to the per-worker queues."""

    STRIPED = "striped"
    """Item i goes to worker i modulo the number of workers."""
    BALANCED = "balanced"
    """Each item, in sequence, goes to the worker with the least work so far."""


@dataclass(frozen=True)
class Schedule:
    """Everything that a graph leaves open. Per-op values are mappings by op name with a common default.

    Attributes:
        workers: number of items that run concurrently.
        dispatch: how workers obtain items. Under HYBRID, the first half of the items is in per-worker queues.
        assignment: how items are assigned to queues, for dispatches with per-worker queues.
        stealing: how many items a worker with an empty queue takes and from which queue, under STEALING.
        policy, order, split: value for all ops, or mapping by op name (other ops get the class default).
        interleaving: how the ops' items merge into one sequence.
        chunk_waits: True to wait before the chunk that needs the data instead of at the item's start.
        tiles: by op name, params of its kernel that define its tile, such as ``{"up": {"BM": 64}}``; other ops, and
            those without params, keep their tile. Orders and splits apply to the new tiles.

    Raises:
        ArgumentError: an attribute has the wrong type, such as a class or a name where an object is needed.
    """

    workers: int
    dispatch: Dispatch = Dispatch.TICKET
    assignment: Assignment = Assignment.STRIPED
    policy: SyncPolicy | Mapping[str, SyncPolicy] = field(default_factory=TileSync)
    order: Order | Mapping[str, Order] = field(default_factory=RowMajor)
    split: Split | Mapping[str, Split] = field(default_factory=WholeTiles)
    interleaving: Interleaving = field(default_factory=OpAfterOp)
    chunk_waits: bool = False
    stealing: Stealing = STEAL_ONE
    tiles: Mapping[str, Mapping[str, Param]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", check_int(self.workers, "Schedule", "workers"))
        check_type(self.dispatch, Dispatch, "Schedule", "dispatch")
        check_type(self.assignment, Assignment, "Schedule", "assignment")
        check_type(self.interleaving, Interleaving, "Schedule", "interleaving", "il.OpAfterOp()")
        check_type(self.chunk_waits, bool, "Schedule", "chunk_waits", "True")
        check_type(self.stealing, Stealing, "Schedule", "stealing")
        check_type(self.tiles, Mapping, "Schedule", "tiles", "{'up': {'BM': 64}}")
        for op, params in self.tiles.items():
            check_type(params, Mapping, "Schedule", f"tiles[{op!r}]", "{'BM': 64}")
        by_op = (("policy", SyncPolicy, TileSync()), ("order", Order, RowMajor()), ("split", Split, WholeTiles()))
        for name, kind, default in by_op:
            given = getattr(self, name)
            for op, value in given.items() if isinstance(given, Mapping) else (("", given),):
                check_type(value, kind, "Schedule", f"{name}[{op!r}]" if op else name, f"il.{default}")

    def __hash__(self) -> int:
        """Hash the schedule; equal mappings hash alike in any order. Raises TypeError if a value has no hash."""
        return hash(tuple(_freeze(getattr(self, each.name)) for each in fields(self)))

    @property
    def op_tilings(self) -> dict[str, OpTiling]:
        """Tile, split and order of the ops that ``tiles`` names, without splits and orders of other kinds."""
        return {name: self.get_op_tiling(name) for name in self.tiles}

    def get_op_tiling(self, name: str) -> OpTiling:
        """Return tile, split and order of an op, without a split or an order of another kind."""
        order, split = find_value(self.order, name, RowMajor()), find_value(self.split, name, WholeTiles())
        return OpTiling(
            tuple(self.tiles.get(name, {}).items()),
            split.parts if isinstance(split, SplitK) else 1,
            isinstance(split, SplitTail),
            order.rows if isinstance(order, GroupedColumnMajor) else 0,
        )


def find_value(value: T | Mapping[str, T], name: str, default: T) -> T:
    """Return the value of an op, given one value for all ops or a mapping by op name."""
    return value.get(name, default) if isinstance(value, Mapping) else value


def _freeze(value: object) -> object:
    return frozenset((name, _freeze(each)) for name, each in value.items()) if isinstance(value, Mapping) else value
