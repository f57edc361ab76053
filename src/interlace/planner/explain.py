"""Why the planner chose what it chose: the winner's figures beside bounds, and itself undone.

Each decision that departs from the plain plan (row-major, op after op, nothing split, a semaphore per tile) is taken
back alone, and what that would cost is predicted: that is its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.base import listed, tiling
from interlace.plan.plan import Dispatch
from interlace.planner.bounds import Bound, Gemm, chain, compulsory
from interlace.planner.build import Choices
from interlace.planner.energy import Estimate, Level, energy
from interlace.planner.handovers import HandOver, hand_overs
from interlace.planner.predict import Prediction
from interlace.planner.search import Candidate, Planned
from interlace.sim.machine import op_rates
from interlace.sim.modes import PERSISTENT, Gate, Mode
from interlace.trace.summary import Summary


class Limit(Enum):
    """What an op's time goes into, if nothing is lost."""

    MEMORY = "memory"
    COMPUTE = "compute"
    L2 = "L2"


@dataclass(frozen=True)
class OpReport:
    """One op of the winner.

    Attributes:
        op: its name.
        tiles: how many.
        waves: items over workers.
        tail: idle share of its last wave, see ``trace/summary``.
        limit: the longest of the times below.
        compute_us, l2_us, memory_us: its FLOPs, its bytes through the L2 and those from memory, at the rates that its
            bodies reach.
    """

    op: str
    tiles: int
    waves: float
    tail: float
    limit: Limit
    compute_us: float
    l2_us: float
    memory_us: float

    @property
    def times_us(self) -> tuple[float, float, float]:
        """Compute, L2, memory."""
        return self.compute_us, self.l2_us, self.memory_us


@dataclass(frozen=True)
class Reason:
    """One decision of the winner, and what the plan would be without it.

    Attributes:
        decision: which.
        chosen: what was decided.
        without_us, without_bytes: time, and bytes from memory, if it is taken back alone; of tiles, under the best of
            the other tilings.
    """

    decision: str
    chosen: str
    without_us: float
    without_bytes: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """All that is said about a planner's answer.

    Attributes:
        planned: the answer.
        ops: the winner, op by op.
        bounds: on its traffic.
        floor_us: no plan takes less: what must be read over the rate of memory, or its FLOPs over those of matmuls,
            whichever is longer.
        hand_overs: from op to op; empty where ops are launches, which begin when others have ended.
        reasons: for each decision that departs from the plain plan.
        dispatches_us: the winner's time under its own and other dispatches; empty if it is launched op by op.
        energy: that moving its data takes, an estimate.
    """

    planned: Planned
    ops: tuple[OpReport, ...]
    bounds: tuple[Bound, ...]
    floor_us: float
    hand_overs: tuple[HandOver, ...]
    reasons: tuple[Reason, ...]
    dispatches_us: Mapping[Dispatch, float]
    energy: Estimate


def explain(
    planned: Planned,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    dispatches: Sequence[Dispatch] = (),
    flops: float | None = None,
) -> Explanation:
    """Why the winner of a search won.

    Args:
        planned: what ``search`` found.
        device, mode: as they were given to it.
        dispatches: to predict the winner under, besides its own.
        flops: of the graph, without those on rows and columns that only fill a tile; those of the tiles if None.
    """
    best = planned.best
    return Explanation(
        planned,
        op_reports(best.prediction, device, mode),
        graph_bounds(best.graph, best.prediction, device),
        floor_us(best.prediction, device, flops),
        () if mode.gate is Gate.ENDED else hand_overs(best.prediction.plan, best.prediction.trace),
        tuple(_reasons(planned, device, mode)),
        _by_dispatch(planned, device, mode, dispatches),
        _energy(best.prediction),
    )


def floor_us(prediction: Prediction, device: DeviceSpec, flops: float | None = None) -> float:
    """The least time of what a plan computes: of its compulsory reads, or of its arithmetic, at the device's rates.

    Args:
        flops: see ``explain``.
    """
    plan, costs = prediction.plan, prediction.costs
    of_op = np.bincount(plan.items.op, costs.flops, len(plan.graph.ops))
    rates = [device.flops_per_s(plan.graph.dtype_of(op)) for op in plan.graph.ops]
    needed = 1.0 if flops is None else min(1.0, flops / (float(of_op.sum()) or 1.0))
    arithmetic_s = needed * float((of_op / rates).sum())
    return 1e6 * max(prediction.traffic.compulsory / device.dram_bytes_per_s, arithmetic_s)


def graph_bounds(graph: Graph, prediction: Prediction, device: DeviceSpec) -> tuple[Bound, ...]:
    """Bounds on the traffic of a graph: of a chain of matmuls if it is one, else what is compulsory."""
    gemms = _gemms(graph)
    if gemms:
        return chain(gemms, graph.tensors[0].dtype.itemsize, device)
    return compulsory(graph.name, prediction.traffic.compulsory, prediction.traffic.written)


def _gemms(graph: Graph) -> tuple[Gemm, ...]:
    """The matmuls of a graph that is a chain of them, each reading the last one's result; else none."""
    last, found = None, []
    for op in graph.ops:
        tensors = {access.arg: access.tensor for access in op.accesses}
        if op.kernel != "matmul" or (last is not None and tensors["x"] != last):
            return ()
        last = tensors.get("out")
        sizes = {name: int(op.param(name)) for name in ("M", "N", "K")}
        found.append(Gemm(sizes["M"], sizes["N"] * (2 if "gate" in tensors else 1), sizes["K"]))
    return tuple(found)


def op_reports(prediction: Prediction, device: DeviceSpec, mode: Mode) -> tuple[OpReport, ...]:
    """What limits each op of a plan, and how full its last wave is."""
    plan, costs = prediction.plan, prediction.costs
    summary = {op.op: op for op in Summary.of(prediction.trace, plan.workers).ops}
    reports, rates = [], op_rates(plan.graph, device, mode)
    for o, op in enumerate(plan.graph.ops):
        mine = plan.items.op == o
        compute = float(costs.flops[mine].sum()) / rates[o] * 1e6
        dram = float(costs.dram_bytes[mine].sum())
        l2 = (float(costs.l2_bytes[mine].sum()) + dram) / (device.sms * device.sm_l2_bytes_per_s) * 1e6
        memory = dram / (device.dram_bytes_per_s * mode.memory_share) * 1e6
        times = {Limit.COMPUTE: compute, Limit.MEMORY: memory, Limit.L2: l2}
        limit = max(times, key=lambda k: times[k])
        seen = summary[op.name]
        reports.append(OpReport(op.name, op.tiles, seen.waves, seen.tail, limit, compute, l2, memory))
    return tuple(reports)


def _reasons(planned: Planned, device: DeviceSpec, mode: Mode) -> list[Reason]:
    best = planned.ranking[0]
    plain = Choices(best.choices.workers)

    def reason(decision: str, chosen: str, undone: Candidate) -> Reason:
        return Reason(decision, chosen, planned.us(undone), planned.dram_read(undone))

    # Splits belong to a number of tiles, so another tiling goes without.
    unsplit = replace(best.choices, split=plain.split)
    others = [sketch.tried(unsplit, device, mode) for sketch in planned.sketches if sketch is not best.sketch]
    other = min(others, key=lambda c: c.us, default=None)
    reasons = [reason("tiles", tiling(best.graph), other)] if other else []
    for decision in ("order", "interleaving", "split", "policy", "dispatch"):
        chosen, default = getattr(best.choices, decision), getattr(plain, decision)
        if chosen != default:
            undone = best.sketch.tried(replace(best.choices, **{decision: default}), device, mode)
            reasons.append(reason(decision, _text(chosen), undone))
    return reasons


def _by_dispatch(
    planned: Planned, device: DeviceSpec, mode: Mode, dispatches: Sequence[Dispatch]
) -> dict[Dispatch, float]:
    best = planned.ranking[0]
    if mode.gate is not Gate.OPEN:
        return {}
    spawns = any(op.when for op in best.graph.ops)
    taken = [d for d in dispatches if d is not best.choices.dispatch and (spawns or d is not Dispatch.SPAWN)]
    others = {d: replace(best.choices, dispatch=d) for d in taken}
    found = {d: planned.us(best.sketch.tried(c, device, mode)) for d, c in others.items()}
    return {best.choices.dispatch: planned.best.us, **found}


def _text(value: object) -> str:
    if isinstance(value, Dispatch):
        return value.value
    return listed(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def _energy(prediction: Prediction) -> Estimate:
    """What passes the L2 passes shared memory once in and once out."""
    traffic = prediction.traffic
    return energy(
        {
            Level.DRAM: traffic.dram_read + traffic.written,
            Level.L2: traffic.touched,
            Level.SHARED: 2 * traffic.touched,
            Level.ARITHMETIC: round(float(prediction.costs.flops.sum())),
        }
    )
