"""Simulated machine: turns a plan, the costs of its items and a device into a trace.

Each of W workers holds one item at a time and takes the next when it has ended. The steps of an item:

    taken       The worker pays for a ticket in one launch, unless dispatch is static. Under stealing, a worker whose
                queue is empty takes from another one. It then also pays for a look at the queues, and has loaded
                nothing ahead. Under dispatch from a queue or by a dispatcher, items are taken in the order in which
                their waits are met. Under spawn dispatch, items that nothing requests are never taken.
    wait_ns     The worker polls the item's waits; one that is already met costs a poll.
    start_ns    The last wait has ended, at least a hand-off latency after the last post that it needs.
                The first loads are in flight (fill). With a ring, this costs time only after a wait, for a worker's
                first item, and for its first item in a launch.
                LL words end a wait without a post before it and without a fill after it.
                Work lasts as long as the slower of the item's FLOPs and its bytes through the L2 on one SM. Bytes from
                memory and partial sums add to this. It lasts longer if the workers together demand more bandwidth than
                the memory has (``memory``).
    end_ns      A part of a split tile has arrived; the item that completes a tile has posted.

If several workers share an SM, each has its part of the SM's rates. The L2's own bandwidth is not shared: each SM has
its part of it.

Worked example on 2 workers, ticket 10, wait 20, hand-off 50, post 30, fill 0: item 0 (work 100) posts what item 1
(work 40) waits for.

    worker 0    item 0   wait 10   start 10   works to 110   end 140
    worker 1    item 1   wait 10   start 160 (110 + 50)      end 200
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import DeviceSpec
from interlace.core.errors import DeadlockError, SimulationError
from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.graph.graph import Graph
from interlace.plan.facts import PlanIndex
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Victim
from interlace.sim.engine import run_engine
from interlace.sim.lockstep import AccessStream
from interlace.sim.memory import Floats
from interlace.sim.modes import PERSISTENT, Gate, Launches, LLHandOffs, Mode, Queues
from interlace.sim.state import NEVER, MachineModel, Outcome, State, Work
from interlace.sim.units import Units
from interlace.trace.events import Trace


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each item of a plan, in sequence order.

    Attributes:
        flops: floating-point operations.
        l2_bytes: bytes that hit in the L2.
        dram_bytes: bytes that miss in the L2.
        ahead_bytes: part of ``dram_bytes`` that is read and that no item writes, so that it can be loaded before waits.
        sum_bytes: bytes of partial sums that the item stores and loads.

    Raises:
        SimulationError: columns of different lengths, a negative or infinite cost, or more ahead than from memory.
    """

    flops: Floats
    l2_bytes: Floats
    dram_bytes: Floats
    ahead_bytes: Floats
    sum_bytes: Floats

    def __post_init__(self) -> None:
        columns = self.flops, self.l2_bytes, self.dram_bytes, self.ahead_bytes, self.sum_bytes
        if len({c.shape for c in columns}) > 1:
            raise SimulationError(f"costs have columns of shapes {[c.shape for c in columns]}; give each item an entry")
        good = np.logical_and.reduce([np.isfinite(c) & (c >= 0) for c in columns])
        good &= self.ahead_bytes <= self.dram_bytes
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            raise SimulationError(
                f"item {i} costs {float(self.flops[i])} FLOPs, {float(self.l2_bytes[i])} bytes of the L2 and "
                f"{float(self.dram_bytes[i])} of memory, {float(self.ahead_bytes[i])} of them ahead, and "
                f"{float(self.sum_bytes[i])} of partial sums; make all finite, none negative, and no more ahead than "
                "from memory"
            )

    @staticmethod
    def from_plan(plan: Plan, units: Units, stream: AccessStream, missed: Ints) -> Costs:
        """Return the costs that follow from the missed bytes of each access.

        All items that read a unit before it is fetched again share the bytes of the fetch: on a GPU they read it at
        about the same time, and all of them wait. A read that misses less than half of a unit adds to the fetch before
        it. A write that misses counts as bytes of memory, because its line is
        written back eventually. A write that hits saves the write-back of the data that it overwrites.
        """
        moved, dram, ahead, sums = np.zeros((4, len(plan.items)))
        is_sum = units.tensor == len(plan.graph.tensors)
        tables = units.nbytes, units.produced, is_sum
        latest, (brought_by, sharing) = np.full(len(units), -1, np.int32), np.zeros((2, len(stream)), np.int32)
        scratch, fetched = (latest, brought_by, sharing), np.zeros(len(stream), np.int64)
        _accumulate(
            stream.unit, stream.is_write, stream.item, missed, *tables, *scratch, fetched, moved, dram, ahead, sums
        )
        return Costs(compute_item_flops(plan), np.maximum(moved - dram, 0.0), dram, np.minimum(ahead, dram), sums)


@cached_njit(allocates=False)
def _accumulate(
    unit: NDArray[np.int32],
    is_write: NDArray[np.bool_],
    item: NDArray[np.int32],
    missed: Ints,
    nbytes: Ints,
    produced: NDArray[np.bool_],
    is_sum: NDArray[np.bool_],
    latest: NDArray[np.int32],
    brought_by: NDArray[np.int32],
    sharing: NDArray[np.int32],
    fetched: Ints,
    moved: Floats,
    dram: Floats,
    ahead: Floats,
    sums: Floats,
) -> None:
    """Add the bytes of each access to its item.

    Args:
        nbytes, produced, is_sum: properties of each unit.
        latest: access that last fetched each unit; at first -1.
        brought_by, sharing, fetched: space for the access that fetched the unit of each access, and for the number of
            accesses that share each fetch and its bytes; at first 0.
    """
    for at in range(len(unit)):
        by, u = at, unit[at]
        if not is_write[at]:
            if latest[u] < 0 or (missed[at] > 0 and 2 * missed[at] >= nbytes[u]):
                latest[u] = at
            by = latest[u]
        brought_by[at] = by
        sharing[by] += 1
        fetched[by] += missed[at]
    for at in range(len(unit)):
        u, i, by = unit[at], item[at], brought_by[at]
        brought = fetched[by] / sharing[by]
        moved[i] += nbytes[u]
        dram[i] += brought
        if not is_write[at] and not produced[u]:
            ahead[i] += brought
        if is_sum[u]:
            sums[i] += nbytes[u]


def compute_item_flops(plan: Plan) -> Floats:
    """Return the floating-point operations of each item: its part of those of its tile."""
    per_k = np.array([op.flops / op.k_extent for op in plan.graph.ops])
    return np.asarray(per_k[plan.items.op] * (plan.items.k_hi - plan.items.k_lo), np.float64)


def compute_op_rates(graph: Graph, device: DeviceSpec, mode: Mode) -> Floats:
    """Return the FLOP/s that bodies reach in each op."""
    rates = [device.flops_per_s(graph.find_compute_dtype(op)) for op in graph.ops]
    shares = [1.0 if op.body is None else op.body.rate_share for op in graph.ops]
    return np.array(rates) * shares * mode.matrix_share


def simulate(
    plan: Plan,
    costs: Costs,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    ran: NDArray[np.bool_] | None = None,
) -> Trace:
    """Run a plan on the simulated machine. Nothing is verified; see ``verify``.

    Args:
        ran: under spawn dispatch, the items that are requested, which depends on data; None for all items.

    Returns:
        Trace of the items that ran; its clock is ``simulated``, in nanoseconds from the first item taken.

    Raises:
        SimulationError: costs or ``ran`` of another number of items, or a mode for another number of ops.
        DeadlockError: items wait for ever; the message names the first of them and its missing post.
        PlanError: the plan's arrays are inconsistent.
    """
    facts = PlanIndex(plan)
    n = len(plan.items)
    if len(costs.flops) != n:
        raise SimulationError(f"costs of {len(costs.flops)} items for a plan of {n}; give each item one entry")
    queues = Queues.from_plan(plan, mode)
    spawns = mode.gate is Gate.OPEN and plan.dispatch is Dispatch.SPAWN
    ran = np.ones(n, np.bool_) if ran is None or not spawns else ran
    if len(ran) != n:
        raise SimulationError(f"ran has {len(ran)} entries for a plan of {n} items; give each item one")
    queues = replace(queues, items=queues.items[ran[queues.items]])
    sharing = -(-queues.workers // device.sms)
    work = _build_work(facts, costs, device, mode, queues, sharing)
    times = device.latencies
    draws = mode.gate is Gate.OPEN and plan.dispatch is not Dispatch.STATIC and not mode.ring_bytes
    steals = mode.gate is Gate.OPEN and plan.dispatch is Dispatch.STEALING
    max_stolen = len(plan.items) if plan.stealing.most is None else plan.stealing.most
    machine = MachineModel(
        workers=queues.workers,
        gate=int(mode.gate),
        ahead=mode.ring_bytes > 0,
        dram=device.dram_bytes_per_s * 1e-9 * mode.memory_share,
        worker_dram=device.sm_dram_bytes_per_s * 1e-9 / sharing,
        worker_l2=device.sm_l2_bytes_per_s * 1e-9 / sharing,
        post_ns=times.post_ns,
        wait_ns=times.wait_ns,
        ticket_ns=times.ticket_ns if draws else 0.0,
        max_stolen=max_stolen if steals else 0,
        random_victims=plan.stealing.victim is Victim.RANDOM,
        steal_ns=times.wait_ns + times.ticket_ns,
        shared=mode.gate is Gate.OPEN and plan.dispatch is Dispatch.HYBRID,
        in_turn=mode.gate is Gate.OPEN and (plan.dispatch.can_reorder or plan.dispatch is Dispatch.SPAWN),
        launch_ns=times.launch_ns,
    )
    wait, start, end = np.full((3, n), NEVER)
    never = plan.items.post[~ran & (plan.items.post >= 0)]  # items that never run must not block others
    out = Outcome(np.full(n, -1), wait, start, end, np.bincount(never, minlength=plan.semaphores).astype(np.int64))
    run_engine(work, machine, State.allocate(work, machine, out.posts), out)
    if np.isinf(end[ran]).any():
        raise DeadlockError(_describe_stuck(facts, out))
    rows = np.flatnonzero(ran)
    wait, start, end = (np.rint(c[rows]).astype(np.int64) for c in (wait, start, end))
    names = tuple(op.name for op in plan.graph.ops)
    op, tile, worker = plan.items.op[rows], plan.items.tile[rows], out.worker[rows]
    return Trace(op, tile, worker, worker % device.sms, wait, start, end, names, "simulated")


def _build_work(facts: PlanIndex, costs: Costs, device: DeviceSpec, mode: Mode, queues: Queues, sharing: int) -> Work:
    """Return the engine's input; ``sharing`` workers share an SM."""
    items, waits, owner = facts.plan.items, facts.plan.waits, facts.wait_item
    times, k_lo, k_hi = device.latencies, items.k_lo[owner], items.k_hi[owner]
    words = mode.ll_hand_offs if mode.waits and mode.gate is Gate.OPEN else None
    worded, silent = LLHandOffs.without_ll(facts.plan) if words is None else words(facts.plan)
    waiting, polling = np.bincount(owner, minlength=len(items)), np.bincount(owner, worded, len(items))
    launches = Launches.from_plan(facts.plan, mode)
    work = Work(
        items=queues.items,
        queue_ptr=queues.ptr,
        op_ptr=launches.ptr,
        before=launches.predecessor_counts,
        next_ptr=launches.next_ptr,
        next=launches.next,
        op=items.op,
        tile=facts.tile_of_item,
        post=items.post if mode.waits else np.full(len(items), -1),
        parts=facts.parts.sizes,
        wait_ptr=waits.ptr if mode.waits else np.zeros(len(items) + 1, np.int64),
        first=waits.first,
        semaphores=waits.count,
        stride=waits.stride,
        threshold=waits.threshold,
        hand_off_ns=np.where(worded, times.ll_ns, times.hand_off_ns),
        post_ns=np.where(silent, 0.0, times.post_ns),
        fill_ns=np.where((polling == waiting) & (waiting > 0), 0.0, times.fill_ns),
        share=np.clip((waits.k - k_lo) / (k_hi - k_lo), 0.0, 1.0),
        compute_ns=costs.flops
        * (device.sms * sharing * 1e9)
        / compute_op_rates(facts.plan.graph, device, mode)[items.op],
        l2_bytes=costs.l2_bytes + costs.dram_bytes,
        extra_ns=(costs.dram_bytes / device.sm_miss_bytes_per_s + costs.sum_bytes / device.sm_sum_bytes_per_s)
        * (sharing * 1e9),
        dram_bytes=costs.dram_bytes,
        ahead_bytes=np.minimum(costs.ahead_bytes, mode.ring_bytes),
    )
    # Otherwise numba compiles the engine again for every mix of strides and of writable and read-only arrays.
    return Work._make(np.require(column, requirements=["C", "W"]) for column in work)


def _describe_stuck(facts: PlanIndex, out: Outcome) -> str:
    """Describe the first item that waits for ever, its semaphore, and the item that does not post it."""
    plan, waits, items = facts.plan, facts.plan.waits, facts.plan.items
    over = np.isfinite(out.end_ns)
    left = np.flatnonzero(~over & (out.worker >= 0))
    item = int(left[0] if len(left) else np.flatnonzero(~over)[0])  # a queue's waiting items are not taken
    for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1])):
        awaited = facts.slice_semaphores(int(facts.wait_class[row]))
        short = np.flatnonzero(out.posts[awaited] < waits.threshold[row])
        if len(short):
            semaphore = range(awaited.start, awaited.stop, awaited.step)[int(short[0])]
            want, got = int(waits.threshold[row]), int(out.posts[semaphore])
            break
    missing = np.flatnonzero(~over & (items.post == semaphore))
    who = f"{plan.format_item(int(missing[0]))} does not end" if len(missing) else "no other item posts it"
    return (
        f"{plan.format_item(item)} waits for ever: semaphore {semaphore} gets {got} posts of {want}, since {who}; let "
        "producers come before their consumers, verify says where they do not"
    )
