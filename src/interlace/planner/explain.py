"""Explain the planner's choice: compare the winner with lower bounds, and with itself minus each decision.

Each decision that departs from the plain plan (row-major, op after op, nothing split, a semaphore per tile) is undone
alone. The predicted cost of undoing it is the reason for the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.kernels.base import format_ops, format_tiling
from interlace.plan.plan import Dispatch
from interlace.planner.energy import EnergyEstimate, Level, estimate_energy
from interlace.planner.graph_bounds import (
    BoundDistance,
    compute_distances,
    compute_graph_bounds,
    compute_tiling_bounds,
    find_nearest_bound,
)
from interlace.planner.handovers import HandOff, find_hand_offs
from interlace.planner.intervals import ReadInterval, predict_read_interval
from interlace.planner.predict import FINE, Prediction
from interlace.planner.search import Candidate, SearchResult
from interlace.policies.schedule import Schedule
from interlace.sim.machine import compute_op_rates
from interlace.sim.modes import PERSISTENT, Gate, Mode
from interlace.trace.summary import Summary


class Bottleneck(Enum):
    """Resource that bounds an op's time if nothing else is lost."""

    MEMORY = "memory"
    COMPUTE = "compute"
    L2 = "L2"


@dataclass(frozen=True)
class OpReport:
    """Report on one op of the winner.

    Attributes:
        op: name of the op.
        tiles: number of tiles.
        waves: number of items divided by number of workers.
        tail: idle share of the op's last wave (``trace/summary``).
        limit: resource with the longest of the times below.
        compute_us, l2_us, memory_us: times in microseconds of its FLOPs, of its bytes through the L2 and of its bytes
            from memory, at the rates that its bodies reach.
    """

    op: str
    tiles: int
    waves: float
    tail: float
    limit: Bottleneck
    compute_us: float
    l2_us: float
    memory_us: float

    @property
    def times_us(self) -> tuple[float, float, float]:
        """Times of compute, L2 and memory in microseconds."""
        return self.compute_us, self.l2_us, self.memory_us


@dataclass(frozen=True)
class Reason:
    """One decision of the winner, and the cost of the plan without it.

    Attributes:
        decision: name of the decision.
        chosen: chosen value.
        without_us, without_bytes: time in microseconds and bytes read from memory if this decision alone is undone;
            for tiles, those of the best other tiling.
    """

    decision: str
    chosen: str
    without_us: float
    without_bytes: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanation of a planner's result.

    Attributes:
        search_result: result of the search.
        ops: report on each op of the winner.
        bounds: lower bounds on its traffic, and how far it is from each.
        nearest_bound: the bound that its traffic comes nearest to, and how far that is.
        read_interval: least and most bytes that it may read from memory (``planner/intervals``).
        floor_us: lower bound on the time of any plan in microseconds: compulsory reads at the rate of memory, or FLOPs
            at the rate of matmuls, whichever takes longer.
        hand_offs: hand-offs into each op; empty where each op is a launch, which begins when others have ended.
        reasons: reason for each decision that departs from the plain plan.
        dispatches_us: winner's time in microseconds under its own and other dispatches; empty if it is launched op by
            op.
        energy: estimated energy of its data movement.
    """

    search_result: SearchResult
    ops: tuple[OpReport, ...]
    bounds: tuple[BoundDistance, ...]
    nearest_bound: BoundDistance
    read_interval: ReadInterval
    floor_us: float
    hand_offs: tuple[HandOff, ...]
    reasons: tuple[Reason, ...]
    dispatches_us: Mapping[Dispatch, float]
    energy: EnergyEstimate


def explain(
    planned: SearchResult,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    dispatches: Sequence[Dispatch] = (),
    flops: float | None = None,
) -> Explanation:
    """Explain why the winner of a search won.

    Args:
        planned: result of ``search``.
        device, mode: arguments that ``search`` was called with.
        dispatches: further dispatches for which the winner's time is predicted.
        flops: FLOPs of the graph without those on padding rows and columns; None for the FLOPs of all tiles.
    """
    best = planned.best
    traffic = best.prediction.traffic
    bounds = (*compute_graph_bounds(best.graph, traffic, device), *compute_tiling_bounds(best.graph, device))
    return Explanation(
        planned,
        report_ops(best.prediction, device, mode),
        compute_distances(bounds, traffic),
        find_nearest_bound(bounds, traffic),
        predict_read_interval(best.prediction.plan, device, mode, FINE),
        compute_floor_us(best.prediction, device, flops),
        () if mode.gate is Gate.ENDED else find_hand_offs(best.prediction.plan, best.prediction.trace),
        tuple(_explain_decisions(planned, device, mode)),
        _predict_dispatches(planned, device, mode, dispatches),
        _estimate_energy(best.prediction),
    )


def compute_floor_us(prediction: Prediction, device: DeviceSpec, flops: float | None = None) -> float:
    """Return the lower bound on a plan's time in microseconds: compulsory reads or arithmetic at the device's rates.

    Args:
        flops: FLOPs without padding, as in ``explain``.
    """
    plan, costs = prediction.plan, prediction.costs
    of_op = np.bincount(plan.items.op, costs.flops, len(plan.graph.ops))
    rates = [device.flops_per_s(plan.graph.find_compute_dtype(op)) for op in plan.graph.ops]
    needed = 1.0 if flops is None else min(1.0, flops / (float(of_op.sum()) or 1.0))
    arithmetic_s = needed * float((of_op / rates).sum())
    return 1e6 * max(prediction.traffic.compulsory_bytes / device.dram_bytes_per_s, arithmetic_s)


def report_ops(prediction: Prediction, device: DeviceSpec, mode: Mode) -> tuple[OpReport, ...]:
    """Return the limit of each op of a plan and the utilisation of its last wave."""
    plan, costs = prediction.plan, prediction.costs
    summary = {op.op: op for op in Summary.from_trace(prediction.trace, plan.workers).ops}
    reports, rates = [], compute_op_rates(plan.graph, device, mode)
    for o, op in enumerate(plan.graph.ops):
        mine = plan.items.op == o
        compute = float(costs.flops[mine].sum()) / rates[o] * 1e6
        dram = float(costs.dram_bytes[mine].sum())
        l2 = (float(costs.l2_bytes[mine].sum()) + dram) / (device.sms * device.sm_l2_bytes_per_s) * 1e6
        memory = dram / (device.dram_bytes_per_s * mode.memory_share) * 1e6
        times = {Bottleneck.COMPUTE: compute, Bottleneck.MEMORY: memory, Bottleneck.L2: l2}
        limit = max(times, key=lambda k: times[k])
        seen = summary[op.name]
        reports.append(OpReport(op.name, op.tiles, seen.waves, seen.tail, limit, compute, l2, memory))
    return tuple(reports)


def _explain_decisions(planned: SearchResult, device: DeviceSpec, mode: Mode) -> list[Reason]:
    best = planned.ranking[0]
    plain = Schedule(best.schedule.workers)

    def reason(decision: str, chosen: str, undone: Candidate) -> Reason:
        return Reason(decision, chosen, planned.compute_us(undone), planned.compute_dram_read(undone))

    # Splits depend on the number of tiles, so other tilings are tried unsplit.
    unsplit = replace(best.schedule, split=plain.split)
    others = [
        sketch.build_and_predict(unsplit, device, mode) for sketch in planned.planners if sketch is not best.planner
    ]
    other = min(others, key=lambda c: c.us, default=None)
    reasons = [reason("tiles", format_tiling(best.graph), other)] if other else []
    for decision in ("order", "interleaving", "split", "policy", "dispatch"):
        chosen, default = getattr(best.schedule, decision), getattr(plain, decision)
        if chosen != default:
            undone = best.planner.build_and_predict(replace(best.schedule, **{decision: default}), device, mode)
            reasons.append(reason(decision, _format_choice(chosen), undone))
    return reasons


def _predict_dispatches(
    planned: SearchResult, device: DeviceSpec, mode: Mode, dispatches: Sequence[Dispatch]
) -> dict[Dispatch, float]:
    best = planned.ranking[0]
    if mode.gate is not Gate.OPEN:
        return {}
    spawns = any(op.when for op in best.graph.ops)
    taken = [d for d in dispatches if d is not best.schedule.dispatch and (spawns or d is not Dispatch.SPAWN)]
    others = {d: replace(best.schedule, dispatch=d) for d in taken}
    found = {d: planned.compute_us(best.planner.build_and_predict(c, device, mode)) for d, c in others.items()}
    return {best.schedule.dispatch: planned.best.us, **found}


def _format_choice(value: object) -> str:
    if isinstance(value, Dispatch):
        return value.value
    return format_ops(f"{k}: {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def _estimate_energy(prediction: Prediction) -> EnergyEstimate:
    """Estimate the energy of a plan; bytes that pass the L2 enter and leave shared memory once each."""
    traffic = prediction.traffic
    return estimate_energy(
        {
            Level.DRAM: traffic.dram_read + traffic.written_bytes,
            Level.L2: traffic.touched_bytes,
            Level.SHARED: 2 * traffic.touched_bytes,
            Level.ARITHMETIC: round(float(prediction.costs.flops.sum())),
        }
    )
