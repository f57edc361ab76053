"""Modes: the differences between executors as data, so that one simulated machine covers all of them.

Five items over two ops, sequence u0 d0 u1 d1 d2:

    mode                 taken in the order    d0 may be taken
    PERSISTENT           u0 d0 u1 d1 d2        at once; it waits for what it needs
    SEMAPHORE_STREAMS    u0 u1 d0 d1 d2        a launch latency after u1 was taken; it waits for what it needs
    SERIAL               u0 u1 d0 d1 d2        a launch latency after u1 has ended
    streams(((), ()))    u0 u1 d0 d1 d2        at once, when u0 and u1 are taken: d is declared to follow no op
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import ItemError, PlanError, SimulationError
from interlace.graph.access import Ints
from interlace.graph.ragged import compute_offsets
from interlace.plan.plan import Dispatch, Plan

#: Maximum number of workers of a simulated plan: far more than any GPU keeps resident, and cheap in memory.
MAX_WORKERS = 1 << 16


class LLHandOffs(NamedTuple):
    """Hand-offs of a plan that use the LL protocol (``ll_hand_offs`` in the code): data with an inline epoch, as in
    NCCL.

    Attributes:
        waits: True for each wait that is for such data only.
        silent: True for each item that posts nothing.
    """

    waits: NDArray[np.bool_]
    silent: NDArray[np.bool_]

    @staticmethod
    def without_ll(plan: Plan) -> LLHandOffs:
        """Return the value for a plan whose waits are all for semaphores."""
        return LLHandOffs(np.zeros(len(plan.waits), np.bool_), np.zeros(len(plan.items), np.bool_))


class Gate(IntEnum):
    """Time from which the items of an op may be taken."""

    OPEN = 0
    """At any time: one launch runs the whole sequence."""
    CLAIMED = 1
    """A launch latency after the last item of the previous op was taken: a stream per op, a gate before each launch."""
    ENDED = 2
    """A launch latency after the last item of every predecessor op has ended: streams and events, or one stream."""


@dataclass(frozen=True)
class Mode:
    """Way in which an executor hands out items.

    Attributes:
        gate: time from which the items of an op may be taken. Unless OPEN, they are taken op after op by any free
            worker, whatever the plan's dispatch.
        after: predecessors of each op, if the gate is ENDED; None if the only predecessor is the op before. A free
            worker takes from the first op that may be taken.
        waits: True if items wait and post as in the plan.
        ll_hand_offs: function that returns the hand-offs that use LL words; None if there are none. It applies only to
            one launch whose items wait.
        ring_bytes: shared memory of one worker into which loads run ahead, in bytes. With a ring, tickets and waits
            that are already met cost nothing. Data that no item writes are loaded during the wait.
        matrix_share, memory_share: fraction of the device's matmul rate and memory rate that the bodies reach.
        evict_first: names of the tensors whose loads tell the L2 to evict them first.
        neighbours: function that returns how many workers in a row run on neighbouring SMs and load the same data at
            the same time; None for one. It applies only to one launch.

    Raises:
        SimulationError: a negative ring size, a share outside (0, 1], or an op that comes after a later one.
    """

    gate: Gate = Gate.OPEN
    after: tuple[tuple[int, ...], ...] | None = None
    waits: bool = True
    ll_hand_offs: Callable[[Plan], LLHandOffs] | None = None
    ring_bytes: int = 0
    matrix_share: float = 1.0
    memory_share: float = 1.0
    evict_first: frozenset[str] = frozenset()
    neighbours: Callable[[Plan], int] | None = None

    def __post_init__(self) -> None:
        if not (0 < self.matrix_share <= 1 and 0 < self.memory_share <= 1):
            raise SimulationError(f"bodies that reach {self.matrix_share} and {self.memory_share} of the rates")
        if self.ring_bytes < 0:
            raise SimulationError(f"ring of {self.ring_bytes} bytes; use 0 for none, or a positive size")
        for o, earlier in enumerate(self.after or ()):
            if any(not 0 <= p < o for p in earlier):
                raise SimulationError(f"op {o} comes after ops {[*earlier]}; name earlier ones only")

    def count_neighbours(self, plan: Plan) -> int:
        """Return how many workers in a row run on neighbouring SMs and load the same data at the same time."""
        return 1 if self.neighbours is None or self.gate is not Gate.OPEN else self.neighbours(plan)


#: Fractions of the rates that bodies reach in which each warp both loads and multiplies, as Triton compiles them.
#: Fitted to the times of ``cuda_graph`` on 16 FFNs (``ffn-models-h200.json``); predictions are then off by 3 % (median)
#: and 19 % (worst case). The full rates are those of warp-specialised launches.
_PLAIN_MATRIX, _PLAIN_MEMORY = 0.82, 0.9


def slow_to_plain_bodies(mode: Mode) -> Mode:
    """Return the mode for bodies without warp specialisation."""
    return replace(mode, matrix_share=_PLAIN_MATRIX, memory_share=_PLAIN_MEMORY)


#: ``executors/persistent``: one launch; under ticket dispatch each item costs a ticket.
PERSISTENT = Mode()
#: ``executors/serial``: a launch per op, one after another.
SERIAL = Mode(Gate.ENDED, waits=False)
#: ``executors/semaphore_streams``: a launch and a stream per op.
SEMAPHORE_STREAMS = Mode(Gate.CLAIMED)


def make_streams_mode(after: Sequence[Sequence[int]]) -> Mode:
    """Return the mode of ``executors/streams``: a launch per op, each of which waits for the ends of some earlier ones.

    If every op follows the previous one, the result is SERIAL.
    """
    mode = replace(SERIAL, after=tuple(tuple(sorted(earlier)) for earlier in after))
    in_turn = tuple((o - 1,) if o else () for o in range(len(mode.after or ())))
    return SERIAL if mode.after == in_turn else mode


def make_megakernel_mode(
    ring_bytes: int,
    ll_hand_offs: Callable[[Plan], LLHandOffs] | None = None,
    evict_first: frozenset[str] = frozenset(),
    neighbours: Callable[[Plan], int] | None = None,
) -> Mode:
    """Return the mode of ``executors/megakernel``: one launch whose loads run ahead through a ring of shared memory.

    Arguments are attributes of ``Mode``.
    """
    return Mode(ring_bytes=ring_bytes, ll_hand_offs=ll_hand_offs, evict_first=evict_first, neighbours=neighbours)


@dataclass(frozen=True, eq=False)
class Queues:
    """Items in the order in which they are taken: one queue for all workers, or one per worker.

    Under hybrid dispatch, a queue for all workers follows the per-worker queues.

    Attributes:
        items: positions in the sequence, queue after queue.
        ptr: start of each queue, with one entry more than there are queues (CSR).
        workers: number of workers that can get an item, the first ones of the plan's.
    """

    items: Ints
    ptr: Ints
    workers: int

    @staticmethod
    def from_plan(plan: Plan, mode: Mode) -> Queues:
        """Return the queues of a plan under a mode.

        Raises:
            PlanError: fewer than one worker.
            SimulationError: more workers that can get an item than a simulation takes.
            ItemError: an item of a plan with per-worker queues names a worker that the plan does not have.
        """
        n, worker = len(plan.items), plan.items.worker
        if plan.workers < 1:
            raise PlanError(f"plan has {plan.workers} workers; set Plan.workers to at least one")
        if mode.gate is not Gate.OPEN or not plan.dispatch.has_queues:
            taken = np.arange(n, dtype=np.int64)
            items = taken if mode.gate is Gate.OPEN else np.argsort(plan.items.op, kind="stable")
            return Queues(items, np.array([0, n], np.int64), _check_workers(min(plan.workers, n)))
        shared = worker < 0 if plan.dispatch is Dispatch.HYBRID else np.zeros(n, np.bool_)
        bad = np.flatnonzero(((worker < 0) & ~shared) | (worker >= plan.workers))
        if len(bad):
            raise ItemError(
                f"{plan.format_item(int(bad[0]))} has worker {int(worker[bad[0]])}; "
                f"name one of 0..{plan.workers - 1} or raise Plan.workers"
            )
        workers = _check_workers(int(worker.max(initial=-1)) + 1)
        queue = np.where(shared, workers, worker)
        count = workers + (plan.dispatch is Dispatch.HYBRID)
        return Queues(np.argsort(queue, kind="stable"), compute_offsets(np.bincount(queue, minlength=count)), workers)


@dataclass(frozen=True, eq=False)
class Launches:
    """Launches of a plan's ops: one op after another, or each op after its predecessors have ended.

    Attributes:
        ptr: bounds of each op in the queue; the items of op o are ``ptr[o]:ptr[o + 1]``.
        predecessor_counts: number of predecessors of each op that have items.
        next_ptr, next: successors of each op (CSR), ``next[next_ptr[o]:next_ptr[o + 1]]``.
    """

    ptr: Ints
    predecessor_counts: Ints
    next_ptr: Ints
    next: Ints

    @staticmethod
    def from_plan(plan: Plan, mode: Mode) -> Launches:
        """Return the launches of a plan under a mode; empty if the gate is OPEN.

        Raises:
            SimulationError: the mode is for a graph with fewer or more ops.
        """
        if mode.gate is Gate.OPEN:
            return Launches(*np.zeros((4, 1), np.int64))
        ops = len(plan.graph.ops)
        sizes = np.bincount(plan.items.op, minlength=ops)
        there = np.flatnonzero(sizes).tolist()
        after: list[tuple[int, ...]] = [()] * ops
        if mode.gate is Gate.ENDED and mode.after is not None:
            if len(mode.after) != ops:
                raise SimulationError(
                    f"a mode that says of {len(mode.after)} ops what they come after, for a graph of {ops}; say it of "
                    "each op"
                )
            after = [tuple(p for p in earlier if sizes[p]) for earlier in mode.after]
        else:
            for earlier_op, op in pairwise(there):
                after[op] = (earlier_op,)
        edges = sorted((p, o) for o, earlier in enumerate(after) for p in earlier)
        following = np.array([o for _, o in edges], np.int64)
        sources = np.bincount(np.array([p for p, _ in edges], np.int64), minlength=ops)
        return Launches(
            compute_offsets(sizes), np.array([*map(len, after)], np.int64), compute_offsets(sources), following
        )


def _check_workers(workers: int) -> int:
    if workers > MAX_WORKERS:
        raise SimulationError(f"plan has work for {workers} workers; a simulation takes {MAX_WORKERS} at most")
    return workers
