"""The queue of a launch in device memory: the ready queue, or the spawn queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import QueueOverflowError
from interlace.graph.access import Ints
from interlace.kernels.abi import Struct
from interlace.megakernel.dispatch import COUNTERS, QUEUE, SPAWN, SPREAD
from interlace.megakernel.ready_queue import ReadyGroups, find_ready_rows
from interlace.megakernel.spawning import SpawnTables
from interlace.megakernel.table import DeviceTables
from interlace.plan.plan import Plan


@dataclass(frozen=True)
class QueueMemory:
    """Device memory of a launch's queue; empty for a launch without one.

    Attributes:
        struct: struct that the launch takes the queue as.
        values: tensors by field.
        counts: numbers by field.
        mutable_fields: fields that a run changes, which are 0 before the first run.
    """

    struct: Struct
    values: dict[str, Any]
    counts: Mapping[str, int]
    mutable_fields: tuple[str, ...]

    @staticmethod
    def allocate(plan: Plan, table: DeviceTables, spawning: SpawnTables | None, torch: Any, device: Any) -> QueueMemory:
        """Allocate the queue of a plan on a device of PyTorch."""
        if spawning is not None:
            counts = spawning.counts
            words = {"slots": counts["capacity"] + table.workers, "votes": 2 * table.workers}
            made = _allocate_tensors(torch, spawning.tables, {"counters": 2 * COUNTERS * SPREAD}, words)
            changing: tuple[str, ...] = ("counters", *words)
        elif plan.dispatch.can_reorder:
            ready = ReadyGroups.from_table(table)
            made = {name: torch.from_numpy(values) for name, values in ready.build_fields(plan.dispatch).items()}
            counts, changing = {"ready": len(ready.first)}, ("met", "tail", "slots")
        else:
            return QueueMemory(QUEUE, {}, {}, ())
        struct = QUEUE if spawning is None else SPAWN
        return QueueMemory(struct, {name: value.to(device) for name, value in made.items()}, counts, changing)

    def pack(self) -> Any:
        """Return the queue as the launch takes it."""
        packed = self.struct.pack(**self.values, **self.counts) if self.values else bytes(self.struct.size)
        return self.struct.ctype.from_buffer_copy(packed)

    def reset(self) -> None:
        """Restore the state before the first run."""
        for name in self.mutable_fields:
            self.values[name].zero_()

    def find_enqueued(self, table: DeviceTables) -> NDArray[np.bool_]:
        """Return a mask of the items that entered the ready queue in the last run."""
        first, slots = (self.values[name].cpu().numpy() for name in ("first", "slots"))
        items = np.zeros(len(table.items), bool)
        items[table.items["number"][find_ready_rows(first[: self.counts["ready"]], slots)]] = True
        return items

    def find_waiting(self, items: int) -> NDArray[np.bool_]:
        """Return a mask, over this many items, of those that wait unclaimed in the spawn queue."""
        rows = np.asarray(self._read_slots() & 0xFFFFFFFF, np.int64) - 1
        found = np.zeros(items, np.bool_)
        found[rows[(rows >= 0) & (rows < items)]] = True
        return found

    def _read_slots(self) -> NDArray[np.uint64]:
        return np.asarray(self.values["slots"].cpu().numpy().view(np.uint64))


def check_capacity(plan: Plan, table: DeviceTables, spawning: SpawnTables | None, capacity: int | None) -> None:
    """Raise unless the queue of a launch never holds more items than ``capacity``; None for any number.

    Items that are ready from the start take no slot of it. A dispatcher's list of ready items is such a queue, too.

    Raises:
        QueueOverflowError: the queue may hold more.
    """
    if capacity is None or not (spawning or plan.dispatch.can_reorder):
        return
    bound = spawning.counts["capacity"] if spawning else len(ReadyGroups.from_table(table).rows.values)
    if bound > capacity:
        raise QueueOverflowError(
            f"up to {bound:,} items come to the queue of a launch under {plan.dispatch.value} dispatch, and "
            f"RunOptions.queue_capacity has room for {capacity:,}; raise it, give the ops larger tiles, or use ticket "
            "dispatch"
        )


def _allocate_tensors(
    torch: Any, tables: Mapping[str, Ints], counters: Mapping[str, int], words: Mapping[str, int]
) -> dict[str, Any]:
    """Return tensors on the host: tables, and zeros of 32 and of 64 bits; each has at least one element."""
    made = {name: torch.tensor(np.append(values, 0).astype(np.int32)) for name, values in tables.items()}
    for sizes, dtype in ((counters, torch.int32), (words, torch.int64)):
        made |= {name: torch.zeros(max(size, 1), dtype=dtype) for name, size in sizes.items()}
    return made
