"""Prediction: what a plan moves and how long it takes, without running it.

What the items touch goes through the model of the L2 in the order in which workers run it; what misses is the cost of
each item on the simulated machine.
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

#: Partial sums of split tiles, among the tensors of ``Traffic.read``.
WORKSPACE = "partial sums"
#: Touches that a prediction tells apart: to rank many candidates, and to judge a few.
CHEAP, FINE = 1 << 17, 1 << 20
_EACH = 64  # and in any case so many of an item


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run, from a cold cache.

    Attributes:
        touched: read by the SMs or written by them.
        missed: of these, not held by the L2.
        read: from memory, by tensor; ``WORKSPACE`` stands for partial sums.
        written: to memory, now or later.
        compulsory: read at least: every byte of the inputs that is touched, once.
    """

    touched: int
    missed: int
    read: Mapping[str, int]
    written: int
    compulsory: int

    @property
    def dram_read(self) -> int:
        """From memory, all tensors."""
        return sum(self.read.values())

    @property
    def hit_rate(self) -> float:
        """Share of the bytes touched that the L2 held."""
        return 1.0 - self.missed / self.touched if self.touched else 0.0


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a plan does on a device under a mode.

    Attributes:
        plan: which plan.
        traffic: bytes moved.
        costs: what each item costs.
        trace: when each item runs, on the simulated machine.
    """

    plan: Plan
    traffic: Traffic
    costs: Costs
    trace: Trace

    @property
    def us(self) -> float:
        """Microseconds from the first item's start to the last one's end."""
        return self.trace.span_ns / 1e3


def predict(
    plan: Plan,
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    limit: int = LIMIT,
    touched_by: Callable[[Plan, int, int], Touches] | None = None,
) -> Prediction:
    """What a plan does on a device. Nothing is verified; see ``verify``.

    Args:
        plan: what is run.
        device: where.
        mode: by which executor.
        limit: most touches that are told apart, or 64 of each item if that is more; above it, chunks of reductions are
            taken together, and where whole ones are still more, those.
        touched_by: what finds the touches of a plan, for those who predict many plans of a graph; ``touches`` if None.

    Raises:
        ArgumentError: a plan or a device that is none.
        SimulationError: the plan is too large.
        DeadlockError, PlanError: the plan makes no sense.
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
    """Bytes of what is read before anything of the run writes it."""
    first = np.full(len(units), len(stream), np.int64)
    order = np.arange(len(stream) - 1, -1, -1)
    first[stream.unit[::-1]] = order
    seen = np.flatnonzero(first < len(stream))
    return int(units.nbytes[seen[~stream.is_write[first[seen]]]].sum())
