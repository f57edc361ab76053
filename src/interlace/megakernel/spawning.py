"""Spawned items in the megakernel: tables of the spawn queue that are fixed before a run, and the errors of its faults.

Spawned items post no semaphore, and no item waits for one of theirs: the queue orders what they read and write
(``csrc/dispatch/spawn.cuh``). In the table, the items of the queue have semaphore numbers that no other item has:

    item         posts in the plan    in the table, of S semaphores
    before       3                    S + 1 + 3: also counts itself as done
    before       none                 S: counts itself as done
    spawned      4                    S
    after        5                    5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import EarlyEndError, HangError, InterlaceError, QueueOverflowError
from interlace.graph.access import Ints
from interlace.kernels.abi import WAIT
from interlace.megakernel.constants import EARLY, LOST, OVERFLOW
from interlace.megakernel.table import DeviceTables
from interlace.megakernel.watchdog import OUTPUTS_UNDEFINED
from interlace.plan.plan import Plan
from interlace.plan.spawns import Spawns, find_cleared_tensors, find_when_tensor, mark_posted


@dataclass(frozen=True)
class SpawnTables:
    """Tables of a launch's spawn queue that are fixed before a run; rows of the table are items in sequence.

    Attributes:
        plan, spawns: the plan and its spawns.
        tensors: names of the tensors that decide which items run.
        tensor: index in ``tensors`` of the tensor of each child in ``spawns.children``.
        table: table of the launch.
    """

    plan: Plan
    spawns: Spawns
    tensors: tuple[str, ...]
    tensor: Ints
    table: DeviceTables

    @staticmethod
    def from_plan(plan: Plan, table: DeviceTables) -> SpawnTables:
        """Build the tables from a table whose rows are in sequence; no tile of it may be split."""
        spawns, ops = Spawns.from_plan(plan), plan.graph.ops
        of_op = [find_when_tensor(op) if op.when else "" for op in ops]
        tensors = tuple(dict.fromkeys(name for name in of_op if name))
        number = np.array([tensors.index(name) if name else -1 for name in of_op])
        own = table.items["post"].astype(np.int64)
        post = np.where((spawns.spawner < 0) & (own >= 0), plan.semaphores + 1 + own, plan.semaphores)
        post[spawns.after] = own[spawns.after]
        lowered = _drop_waits(plan, table, mark_posted(plan, spawns.spawner >= 0))
        lowered.items["post"] = post
        return SpawnTables(plan, spawns, tensors, number[plan.items.op[spawns.children.values]], lowered)

    @property
    def tables(self) -> dict[str, Ints]:
        """The tables in ``launch.spawn.SPAWN`` that no run changes, by field."""
        spawns = self.spawns
        return {
            "first": spawns.before,
            "behind": spawns.after,
            "children": spawns.children.ptr,
            "rows": spawns.children.values,
            "elements": spawns.element[spawns.children.values],
            "tensors": self.tensor,
        }

    @property
    def counts(self) -> dict[str, int]:
        """The numbers in ``launch.spawn.SPAWN``, by field."""
        return {
            "ready": len(self.spawns.before),
            "later": len(self.spawns.after),
            "capacity": len(self.spawns.children.values),
            "ops": len(self.plan.graph.ops),
            "semaphores": self.plan.semaphores,
        }

    def pack_addresses(self, arguments: Any) -> bytes:
        """Return the addresses of ``tensors`` as bytes, given each op with its tensors by argument."""
        given = {find_when_tensor(op): tensors[op.when] for op, tensors in arguments if op.when}
        return np.array([given[name].data_ptr() for name in self.tensors], np.uint64).tobytes()

    def clear_outputs(self, arguments: Any) -> None:
        """Zero what items that may not run would write, given each op with its tensors by argument."""
        written = {access.tensor: given[access.arg] for op, given in arguments for access in op.writes}
        for name in find_cleared_tensors(self.plan.graph):
            written[name].zero_()

    def make_fault_error(
        self, item: int, semaphore: int, expected: int, seen: int, done: NDArray[np.bool_], given: Mapping[str, Any]
    ) -> InterlaceError | None:
        """Return the error for what a launch recorded, or None if the fault is not the queue's.

        Args:
            item, semaphore, expected, seen: the record.
            done: mask of items that are done, or wait in the queue.
            given: tensors by name.
        """
        if semaphore == OVERFLOW:
            return QueueOverflowError(
                f"{self.plan.format_item(item)} (item {item}) spawned an item for which the queue has no place: it has "
                f"{expected}, one for each that the plan may spawn, and this was number {seen}; nothing was written "
                f"beyond. {OUTPUTS_UNDEFINED}"
            )
        if semaphore == EARLY:
            return EarlyEndError(
                f"{self.plan.format_item(item)} (item {item}) was not done when workers took all items to be done. "
                f"{OUTPUTS_UNDEFINED}"
            )
        if semaphore != LOST:
            return None
        lost = self._find_lost_item(done, given)
        name = "none of them" if lost is None else f"{self.plan.format_item(lost)} (item {lost})"
        return HangError(
            f"a worker waited for place {item} of the queue, to which {seen} items came that others spawned, and saw "
            f"no end before the watchdog fired; {name} never came, though it is wanted. {OUTPUTS_UNDEFINED}",
            item=-1 if lost is None else lost,
            semaphore=-1,
            expected=seen,
            seen=int(done.sum()),
            producer=None if lost is None else self.plan.format_item(int(self.spawns.spawner[lost])),
        )

    def _find_lost_item(self, came: NDArray[np.bool_], given: Mapping[str, Any]) -> int | None:
        """Return the first requested item that never came although its spawner did, or None."""
        wanted = {name: given[name].cpu().numpy().reshape(-1) for name in self.tensors}
        for item in self.spawns.children.values[np.argsort(self.spawns.children.values)].tolist():
            name = find_when_tensor(self.plan.graph.ops[int(self.plan.items.op[item])])
            if came[self.spawns.spawner[item]] and not came[item] and wanted[name][self.spawns.element[item]]:
                return int(item)
        return None


def _drop_waits(plan: Plan, table: DeviceTables, left_out: NDArray[np.bool_]) -> DeviceTables:
    """Return the table without the waits for some semaphores."""
    items, waits = table.items.copy(), table.waits
    rows: list[tuple[int, ...]] = []
    for item in items:
        low, middle, high = (int(item[name]) for name in ("wait_lo", "wait_mid", "wait_hi"))
        item["wait_lo"] = item["wait_mid"] = len(rows)
        for row in range(low, high):
            first, count, stride, threshold, k = (int(waits[row][name]) for name in WAIT.names)
            kept = first + stride * np.arange(count)
            kept = kept[~left_out[kept]]
            # Consecutive semaphores stay one range.
            for run in np.split(kept, np.flatnonzero(np.diff(kept) != stride) + 1):
                if len(run):
                    rows.append((int(run[0]), len(run), stride, threshold, k))
            if row < middle:
                item["wait_mid"] = len(rows)
        item["wait_hi"] = len(rows)
    made = np.zeros(max(len(rows), 1), WAIT.dtype)
    for name, column in zip(WAIT.names, np.array(rows, np.int64).reshape(-1, len(WAIT.names)).T, strict=True):
        made[name][: len(rows)] = column
    return replace(table, items=items, waits=made)
