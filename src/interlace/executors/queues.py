"""The queue of a launch in device memory: of items that are ready, or of those that others spawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import QueueOverflowError
from interlace.executors.ready import Ready, came
from interlace.executors.spawning import Spawning
from interlace.executors.table import Table
from interlace.graph.access import Ints
from interlace.kernels.abi import Struct
from interlace.launch.dispatch import QUEUE
from interlace.launch.spawn import COUNTERS, SPAWN, SPREAD
from interlace.plan.plan import Plan


@dataclass(frozen=True)
class QueueMemory:
    """What a launch takes of its queue; nothing where it has none.

    Attributes:
        struct: as which.
        values: tensors by field.
        counts: numbers by field.
        changing: fields that a run changes, and that are 0 ahead of the first.
    """

    struct: Struct
    values: dict[str, Any]
    counts: Mapping[str, int]
    changing: tuple[str, ...]

    @staticmethod
    def of(plan: Plan, table: Table, spawning: Spawning | None, torch: Any, device: Any) -> QueueMemory:
        """Of a plan on a device of PyTorch."""
        if spawning is not None:
            counts = spawning.counts
            words = {"slots": counts["capacity"] + table.workers, "votes": 2 * table.workers}
            made = _made(torch, spawning.tables, {"counters": 2 * COUNTERS * SPREAD}, words)
            changing: tuple[str, ...] = ("counters", *words)
        elif plan.dispatch.when_ready:
            ready = Ready.of(table)
            made = {name: torch.from_numpy(values) for name, values in ready.memory(plan.dispatch).items()}
            counts, changing = {"ready": len(ready.first)}, ("met", "tail", "slots")
        else:
            return QueueMemory(QUEUE, {}, {}, ())
        struct = QUEUE if spawning is None else SPAWN
        return QueueMemory(struct, {name: value.to(device) for name, value in made.items()}, counts, changing)

    def packed(self) -> Any:
        """As the launch takes it."""
        packed = self.struct.pack(**self.values, **self.counts) if self.values else bytes(self.struct.size)
        return self.struct.ctype.from_buffer_copy(packed)

    def reset(self) -> None:
        """As before the first run."""
        for name in self.changing:
            self.values[name].zero_()

    def came(self, table: Table) -> NDArray[np.bool_]:
        """Which items came to a queue of ready items in the last run."""
        first, slots = (self.values[name].cpu().numpy() for name in ("first", "slots"))
        items = np.zeros(len(table.items), bool)
        items[table.items["number"][came(first[: self.counts["ready"]], slots)]] = True
        return items

    def waiting(self, items: int) -> NDArray[np.bool_]:
        """Which of so many items are in a queue of spawned ones, and nobody took them."""
        rows = np.asarray(self._slots() & 0xFFFFFFFF, np.int64) - 1
        found = np.zeros(items, np.bool_)
        found[rows[(rows >= 0) & (rows < items)]] = True
        return found

    def _slots(self) -> NDArray[np.uint64]:
        return np.asarray(self.values["slots"].cpu().numpy().view(np.uint64))


def check_capacity(plan: Plan, table: Table, spawning: Spawning | None, capacity: int | None) -> None:
    """Raise unless the queue of a launch never has more items than ``capacity``; None for any number.

    Items that are there from the start have no place in it. A dispatcher's list of ready items is such a queue.

    Raises:
        QueueOverflowError: it may have more.
    """
    if capacity is None or not (spawning or plan.dispatch.when_ready):
        return
    bound = spawning.counts["capacity"] if spawning else len(Ready.of(table).rows.values)
    if bound > capacity:
        raise QueueOverflowError(
            f"up to {bound:,} items come to the queue of a launch under {plan.dispatch.value} dispatch, and "
            f"Options.capacity has room for {capacity:,}; raise it, give the ops larger tiles, or use ticket dispatch"
        )


def _made(
    torch: Any, tables: Mapping[str, Ints], counters: Mapping[str, int], words: Mapping[str, int]
) -> dict[str, Any]:
    """Tensors on the host: tables, and as many zeros of 32 and of 64 bits; one element at least."""
    made = {name: torch.tensor(np.append(values, 0).astype(np.int32)) for name, values in tables.items()}
    for sizes, dtype in ((counters, torch.int32), (words, torch.int64)):
        made |= {name: torch.zeros(max(size, 1), dtype=dtype) for name, size in sizes.items()}
    return made
