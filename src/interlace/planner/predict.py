"""Prediction: traffic and time of a plan without running it.

The accesses of all items go through the L2 model in the order in which workers run the items. The misses determine the
cost of each item on the simulated machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.devices import DeviceSpec
from interlace.graph.access import Ints
from interlace.plan.plan import Plan
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream, interleave
from interlace.sim.machine import Costs, simulate
from interlace.sim.modes import PERSISTENT, Mode
from interlace.sim.traffic import MAX_ENTRIES, Touches, list_touches
from interlace.sim.units import Units
from interlace.trace.events import Trace

#: Name of the split-K partials among the tensors of ``Traffic.read_bytes``.
WORKSPACE = "partial sums"
#: Numbers of touches that a prediction resolves: to rank many candidates, and to decide among a few.
CHEAP, FINE = 1 << 17, 1 << 20
_TOUCHES_PER_ITEM = 64  # minimum number of touches resolved per item


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run with a cold cache.

    Attributes:
        touched_bytes: bytes that the SMs read or write.
        missed_bytes: bytes of these that miss the L2.
        read_bytes: bytes read from memory, by tensor; ``WORKSPACE`` stands for the split-K partials.
        written_bytes: bytes written to memory, during the run or later.
        compulsory_bytes: minimum number of bytes read: each input byte that is touched, once.
    """

    touched_bytes: int
    missed_bytes: int
    read_bytes: Mapping[str, int]
    written_bytes: int
    compulsory_bytes: int

    @property
    def dram_read(self) -> int:
        """Bytes read from memory, all tensors together."""
        return sum(self.read_bytes.values())

    @property
    def hit_rate(self) -> float:
        """Share of the touched bytes that hit the L2."""
        return 1.0 - self.missed_bytes / self.touched_bytes if self.touched_bytes else 0.0


@dataclass(frozen=True, eq=False)
class TrafficCount:
    """Traffic of a plan on a device under a mode, without times.

    Attributes:
        plan: plan that was counted.
        traffic: bytes moved.
        costs: cost of each item.
    """

    plan: Plan
    traffic: Traffic
    costs: Costs


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted behaviour of a plan on a device under a mode.

    Attributes:
        plan: plan that was predicted.
        traffic: bytes moved.
        costs: cost of each item.
        trace: times of each item on the simulated machine.
    """

    plan: Plan
    traffic: Traffic
    costs: Costs
    trace: Trace

    @property
    def us(self) -> float:
        """Microseconds from the start of the first item to the end of the last one."""
        return self.trace.span_ns / 1e3


def predict(
    plan: Plan,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    limit: int = MAX_ENTRIES,
    touch_cache: Callable[[Plan, int, int], Touches] | None = None,
) -> Prediction:
    """Predict traffic and time of a plan on a device. The plan is not verified; see ``verify``.

    Args:
        plan: plan to predict.
        device: device that it runs on.
        mode: mode of the executor that runs it.
        limit: maximum number of touches that are resolved, or 64 per item if that is more. Above it, several chunks of
            a reduction count as one step. Plans that exceed it even with whole reductions per step are accepted up to
            ``MAX_ENTRIES``.
        touch_cache: function that returns the touches of a plan, for callers that predict many plans of one graph;
            None for ``list_touches``.

    Raises:
        ArgumentError: the plan or the device has the wrong type.
        SimulationError: the plan is too large.
        DeadlockError, PlanError: the plan is invalid.
    """
    check_type(plan, Plan, "predict", "plan", "il.build(graph, schedule)")
    check_type(device, DeviceSpec, "predict", "device", "il.H200")
    count = count_traffic(plan, device, mode, limit, touch_cache)
    return Prediction(plan, count.traffic, count.costs, simulate(plan, count.costs, device, mode))


def count_traffic(
    plan: Plan,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    limit: int = MAX_ENTRIES,
    touched_by: Callable[[Plan, int, int], Touches] | None = None,
) -> TrafficCount:
    """Count the traffic of a plan without its times; arguments and errors as for ``predict``, but no DeadlockError."""
    touched = (touched_by or list_touches)(plan, resolve_limit(plan, limit), MAX_ENTRIES)
    stream = interleave(plan, touched, mode, device.speed_spread)
    missed = simulate_missed_bytes(stream, touched.units.nbytes, device.l2)
    costs = Costs.from_plan(plan, touched.units, stream, missed)
    return TrafficCount(plan, _compute_traffic(plan, touched, stream, missed), costs)


def resolve_limit(plan: Plan, limit: int) -> int:
    """Return the number of touches that ``predict`` resolves under a limit: 64 per item if that is more."""
    return max(limit, min(_TOUCHES_PER_ITEM * len(plan.items), MAX_ENTRIES))


def _compute_traffic(plan: Plan, touched: Touches, stream: AccessStream, missed: Ints) -> Traffic:
    units = touched.units
    names = [*(t.name for t in plan.graph.tensors), WORKSPACE]
    by_unit = np.bincount(stream.unit, np.where(stream.is_write, 0, missed), len(units))
    by_tensor = np.bincount(units.tensor, by_unit, len(names))
    return Traffic(
        touched_bytes=int(np.bincount(stream.unit, minlength=len(units)) @ units.nbytes),
        missed_bytes=int(missed.sum()),
        read_bytes={name: int(count) for name, count in zip(names, by_tensor, strict=True) if count},
        written_bytes=int(units.nbytes[units.produced].sum()),
        compulsory_bytes=_count_compulsory_bytes(units, stream),
    )


def _count_compulsory_bytes(units: Units, stream: AccessStream) -> int:
    """Return the bytes of units whose first access in the run is a read."""
    first = np.full(len(units), len(stream), np.int64)
    order = np.arange(len(stream) - 1, -1, -1)
    first[stream.unit[::-1]] = order
    seen = np.flatnonzero(first < len(stream))
    return int(units.nbytes[seen[~stream.is_write[first[seen]]]].sum())


def predict_dram_reads(plan: Plan, device: DeviceSpec, capacities: Sequence[int], mode: Mode = PERSISTENT) -> list[int]:
    """Return the DRAM reads in bytes that ``predict`` would report if the device's L2 had each of these capacities.

    Args:
        plan, device, mode: arguments of ``predict``.
        capacities: capacities of the L2 in bytes, all sides together.

    Raises:
        SimulationError: the plan is too large.
    """
    touched = list_touches(plan)
    stream = interleave(plan, touched, mode, device.speed_spread)
    read = []
    for capacity in capacities:
        l2 = device.l2.resize(capacity // device.l2.sides)
        read.append(int(simulate_missed_bytes(stream, touched.units.nbytes, l2)[~stream.is_write].sum()))
    return read
