"""Lockstep: in which order the workers of a run touch units, told without a clock.

The workers move in rounds. In its turn of a round a worker that holds no item takes the next one; then it runs
one step, and if that was the item's last, writes and lets go. This is what a cache sees of W workers at equal
speed, which is close to what a GPU does where all items of an op cost the same.

Two workers, items A (two steps, a0 a1), B (one step, b0) and C (one step, c0), each then writing one unit:

    round 0     worker 0: a0            worker 1: b0 write B
    round 1     worker 0: a1 write A    worker 1: c0 write C
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from interlace.core.errors import SimulationError
from interlace.graph.access import Ints
from interlace.plan.plan import Plan
from interlace.sim.modes import PERSISTENT, Gate, Mode, Queues
from interlace.sim.traffic import Touches


@dataclass(frozen=True, eq=False)
class AccessStream:
    """Accesses to units, one entry per access, in order.

    Attributes:
        unit: which unit.
        is_write: True for a write.
        item: by which item, as a position in the plan's sequence.
    """

    unit: NDArray[np.int32]
    is_write: NDArray[np.bool_]
    item: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.unit)


def interleave(plan: Plan, touches: Touches, mode: Mode = PERSISTENT) -> AccessStream:
    """The accesses of a plan's workers in lockstep. Nobody waits, except for the end of an op in serial mode.

    Raises:
        SimulationError: the touches are those of another plan.
        PlanError: the plan has no workers, or an item names one that there is not.
    """
    if len(touches.write_ptr) != len(plan.items) + 1:
        raise SimulationError(
            f"touches of {len(touches.write_ptr) - 1} items for a plan of {len(plan.items)}; take touches(plan)"
        )
    n, queues = len(touches), Queues.of(plan, mode)
    stream = AccessStream(np.empty(n, np.int32), np.empty(n, np.bool_), np.empty(n, np.int32))
    _interleave(
        queues.items,
        queues.ptr,
        np.ascontiguousarray(plan.items.op),
        plan.workers,
        mode.gate is Gate.ENDED,
        touches.step_ptr,
        touches.read_ptr,
        touches.reads,
        touches.write_ptr,
        touches.writes,
        stream.unit,
        stream.is_write,
        stream.item,
    )
    return stream


@njit(cache=True)
def _interleave(
    items: Ints,
    queue_ptr: Ints,
    op: Ints,
    workers: int,
    op_by_op: bool,
    step_ptr: Ints,
    read_ptr: Ints,
    reads: NDArray[np.int32],
    write_ptr: Ints,
    writes: NDArray[np.int32],
    unit: NDArray[np.int32],
    is_write: NDArray[np.bool_],
    item: NDArray[np.int32],
) -> None:
    shared = len(queue_ptr) == 2
    following = queue_ptr[:-1].copy()
    held = np.full(workers, -1, np.int64)
    step = np.zeros(workers, np.int64)
    holding, left, current = 0, len(items), 0
    at = 0
    while left > 0:
        for w in range(workers):
            queue = 0 if shared else w
            if held[w] < 0 and following[queue] < queue_ptr[queue + 1]:
                i = items[following[queue]]
                if not op_by_op or holding == 0 or op[i] == current:
                    following[queue] += 1
                    held[w], step[w], current = i, step_ptr[i], op[i]
                    holding += 1
            i = held[w]
            if i < 0:
                continue
            for r in range(read_ptr[step[w]], read_ptr[step[w] + 1]):
                unit[at], is_write[at], item[at] = reads[r], False, i
                at += 1
            step[w] += 1
            if step[w] == step_ptr[i + 1]:
                for r in range(write_ptr[i], write_ptr[i + 1]):
                    unit[at], is_write[at], item[at] = writes[r], True, i
                    at += 1
                held[w] = -1
                holding -= 1
                left -= 1
