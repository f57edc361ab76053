"""Prediction: traffic and time of a plan without running it.

The accesses of all items go through the L2 model in the order in which workers run the items. The misses determine the
cost of each item on the simulated machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.devices import DeviceSpec
from interlace.graph.access import Ints
from interlace.plan.plan import Plan
from interlace.sim.l2 import missed_bytes
from interlace.sim.lockstep import AccessStream, interleave
from interlace.sim.machine import Costs, simulate
from interlace.sim.modes import PERSISTENT, Mode
from interlace.sim.traffic import LIMIT, Touches, touches
from interlace.sim.units import Units
from interlace.trace.events import Trace

#: Name of the split-K partials among the tensors of ``Traffic.read``.
WORKSPACE = "partial sums"
#: Numbers of touches that a prediction resolves: to rank many candidates, and to decide among a few.
CHEAP, FINE = 1 << 17, 1 << 20
_EACH = 64  # minimum number of touches resolved per item


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run with a cold cache.

    Attributes:
        touched: bytes that the SMs read or write.
        missed: bytes of these that miss the L2.
        read: bytes read from memory, by tensor; ``WORKSPACE`` stands for the split-K partials.
        written: bytes written to memory, during the run or later.
        compulsory: minimum number of bytes read: each input byte that is touched, once.
    """

    touched: int
    missed: int
    read: Mapping[str, int]
    written: int
    compulsory: int

    @property
    def dram_read(self) -> int:
        """Bytes read from memory, all tensors together."""
        return sum(self.read.values())

    @property
    def hit_rate(self) -> float:
        """Share of the touched bytes that hit the L2."""
        return 1.0 - self.missed / self.touched if self.touched else 0.0


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
    limit: int = LIMIT,
    touched_by: Callable[[Plan, int, int], Touches] | None = None,
) -> Prediction:
    """Predict traffic and time of a plan on a device. The plan is not verified; see ``verify``.

    Args:
        plan: plan to predict.
        device: device that it runs on.
        mode: mode of the executor that runs it.
        limit: maximum number of touches that are resolved, or 64 per item if that is more. Above it, several chunks of
            a reduction count as one step. Plans that exceed it even with whole reductions per step are accepted up to
            ``LIMIT``.
        touched_by: function that returns the touches of a plan, for callers that predict many plans of one graph;
            None for ``touches``.

    Raises:
        ArgumentError: the plan or the device has the wrong type.
        SimulationError: the plan is too large.
        DeadlockError, PlanError: the plan is invalid.
    """
    check_type(plan, Plan, "predict", "plan", "il.build(graph, choices)")
    check_type(device, DeviceSpec, "predict", "device", "il.H200")
    touched = (touched_by or touches)(plan, max(limit, min(_EACH * len(plan.items), LIMIT)), LIMIT)
    stream = interleave(plan, touched, mode, device.speed_spread)
    missed = missed_bytes(stream, touched.units.nbytes, device.l2)
    costs = Costs.of(plan, touched.units, stream, missed)
    return Prediction(plan, _traffic(plan, touched, stream, missed), costs, simulate(plan, costs, device, mode))


def _traffic(plan: Plan, touched: Touches, stream: AccessStream, missed: Ints) -> Traffic:
    units = touched.units
    names = [*(t.name for t in plan.graph.tensors), WORKSPACE]
    by_unit = np.bincount(stream.unit, np.where(stream.is_write, 0, missed), len(units))
    by_tensor = np.bincount(units.tensor, by_unit, len(names))
    return Traffic(
        touched=int(np.bincount(stream.unit, minlength=len(units)) @ units.nbytes),
        missed=int(missed.sum()),
        read={name: int(count) for name, count in zip(names, by_tensor, strict=True) if count},
        written=int(units.nbytes[units.produced].sum()),
        compulsory=_compulsory(units, stream),
    )


def _compulsory(units: Units, stream: AccessStream) -> int:
    """Return the bytes of units whose first access in the run is a read."""
    first = np.full(len(units), len(stream), np.int64)
    order = np.arange(len(stream) - 1, -1, -1)
    first[stream.unit[::-1]] = order
    seen = np.flatnonzero(first < len(stream))
    return int(units.nbytes[seen[~stream.is_write[first[seen]]]].sum())
