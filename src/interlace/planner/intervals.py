"""Intervals of predicted DRAM reads: what the capacity and the drift between SMs leave open.

Near a knee of the cache a run of an order may read far more than another run of the same order. The two counts of
``traffic-h200.json`` (of 2026-11-21 and of 2026-11-22) differ by 0.5 % in the median of 104 cases, by more than 4 % in
14, and by up to 68 %. An interval has the least and the most that is predicted over

- capacities of a side from 28/31 to 34/31 of the one that the model takes. On an H200 the share that is still cached of
  a footprint that many SMs read falls from 98 % at 28 MiB to 1 % at 34 MiB (``l2-h200.json``);
- drifts from a quarter to twice the model's. Counts of equal orders are what the model gives at drifts from 0.9 % to
  4.5 %, and the model takes 2.5 %;
- draws of which SMs are slow and which side each is on, which differ between GPUs and are not known.

A cache that is given by its size alone, whose readers are equally fast, has no interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from interlace.core.devices import DeviceSpec
from interlace.plan.plan import Plan
from interlace.planner.predict import resolve_limit
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import interleave
from interlace.sim.modes import PERSISTENT, Mode
from interlace.sim.traffic import MAX_ENTRIES, list_touches

_CAPACITIES, _DRIFTS = (28 / 31, 34 / 31), (0.25, 2.0)
_DRAWS = 4
_MAX_DRIFT = 0.99
_NARROW = 0.02  # relative width below which an interval says no more than its middle


@dataclass(frozen=True)
class ReadInterval:
    """Least and most bytes that a plan is predicted to read from memory.

    Attributes:
        low, high: bytes, with the point prediction between them.
    """

    low: int
    high: int

    @property
    def is_narrow(self) -> bool:
        """True if both ends are within 2 %."""
        return self.high <= (1 + _NARROW) * self.low

    def compute_error(self, counted: float) -> float:
        """Return the relative error of the nearer end against a count; 0 within the interval."""
        return min(max(counted, self.low), self.high) / counted - 1


def predict_read_interval(
    plan: Plan, device: DeviceSpec, mode: Mode = PERSISTENT, limit: int = MAX_ENTRIES
) -> ReadInterval:
    """Predict the interval of the bytes that a plan reads from memory; arguments as for ``predict``.

    Raises:
        SimulationError: the plan is too large.
        PlanError: the plan is invalid.
    """
    touched = list_touches(plan, resolve_limit(plan, limit), MAX_ENTRIES)
    spread, side = device.speed_spread, device.l2.side_bytes
    capacities = [round(side * part) for part in _CAPACITIES]
    runs = [(1.0, 0, [side])]
    if spread:
        runs += [(drift, draw, capacities) for drift, draw in product(_DRIFTS, range(_DRAWS))]
    read = []
    for drift, draw, sizes in runs:
        stream = interleave(plan, touched, mode, min(spread * drift, _MAX_DRIFT), draw)
        for capacity in sizes:
            missed = simulate_missed_bytes(stream, touched.units.nbytes, replace(device.l2, side_bytes=capacity), draw)
            read.append(int(missed[~stream.is_write].sum()))
    return ReadInterval(min(read), max(read))
