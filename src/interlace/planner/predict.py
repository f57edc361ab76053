"""Prediction: what a plan moves and how long it takes, without running it.

What the items touch goes through the model of the L2 in the order in which workers run it; what misses is the cost of
each item on the simulated machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.graph.access import Ints
from interlace.plan.plan import Plan
from interlace.sim.l2 import missed_bytes
from interlace.sim.lines import LineCache
from interlace.sim.lockstep import AccessStream, interleave
from interlace.sim.machine import Costs, simulate
from interlace.sim.modes import PERSISTENT, Mode
from interlace.sim.runs import Boxes
from interlace.sim.traffic import LIMIT, Touches, touches
from interlace.sim.units import Units
from interlace.trace.events import Trace

#: Partial sums of split tiles, among the tensors of ``Traffic.read``.
WORKSPACE = "partial sums"
#: Touches that a prediction tells apart: to rank many candidates, and to judge a few.
CHEAP, FINE = 1 << 17, 1 << 20
_EACH = 64  # and in any case so many of an item
_SAMPLE = 16


class Model(Enum):
    """How the L2 is taken."""

    TILE = "tile"
    """Whole pieces of tensors, in the two sides that the chip has: exact, fast, and sharp at its capacity."""
    LINE = "line"
    """128-byte lines in hashed sets of one side, as if all SMs read everything: soft at its capacity."""


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
    plan: Plan, device: DeviceSpec, mode: Mode = PERSISTENT, model: Model = Model.TILE, limit: int = LIMIT
) -> Prediction:
    """What a plan does on a device. Nothing is verified; see ``verify``.

    Args:
        plan: what is run.
        device: where.
        mode: by which executor.
        model: how the L2 is taken.
        limit: most touches that are told apart, or 64 of each item if that is more; above it, chunks of reductions are
            taken together.

    Raises:
        SimulationError: the plan is too large, or a tile does not fit the L2.
        DeadlockError, PlanError: the plan makes no sense.
    """
    touched = touches(plan, max(limit, min(_EACH * len(plan.items), LIMIT)))
    stream = interleave(plan, touched, mode, device.speed_spread)
    missed = missed_bytes(stream, touched.units.nbytes, device.l2)
    traffic = _traffic(plan, touched, stream, missed)
    if model is Model.LINE:
        traffic, missed = _by_line(traffic, touched.units, stream, missed, device)
    costs = Costs.of(plan, touched.units, stream, missed)
    return Prediction(plan, traffic, costs, simulate(plan, costs, device, mode))


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


def _by_line(
    traffic: Traffic, units: Units, stream: AccessStream, missed: Ints, device: DeviceSpec
) -> tuple[Traffic, Ints]:
    """The same as the line model has it: what it says of all reads, shared out as the tile model says."""
    cache = LineCache(device.l2.side_bytes, device.l2.ways, line_bytes=device.l2.line_bytes)
    found = cache.run(_lines(units, stream, cache.line_bytes), _SAMPLE)
    # What is compulsory is known exactly; a sample of it would only add an error, and might fall below it.
    read = traffic.compulsory + found.read_miss_bytes - found.compulsory_bytes
    scale = read / traffic.dram_read if traffic.dram_read else 1.0
    scaled = np.where(stream.is_write, missed, missed * scale)
    room = np.where(stream.is_write, 0.0, units.nbytes[stream.unit] - scaled)  # negative where all was missed before
    surplus, free = -np.minimum(room, 0.0).sum(), np.maximum(room, 0.0)
    scaled += np.minimum(room, 0.0) + free * (surplus / max(free.sum(), 1.0))
    missed = np.rint(scaled).astype(np.int64)
    by_tensor = {name: round(count * scale) for name, count in traffic.read.items()}
    return Traffic(traffic.touched, int(missed.sum()), by_tensor, traffic.written, traffic.compulsory), missed


def _lines(units: Units, stream: AccessStream, line_bytes: int) -> Boxes:
    """The accesses as boxes of lines; a tensor's rows are padded to whole lines."""
    tall = units.rows > 1
    first = units.first_byte // line_bytes
    per_row = (units.first_byte % line_bytes + units.row_bytes + line_bytes - 1) // line_bytes
    pitch = units.row_stride // line_bytes
    end = 0
    for t in np.unique(units.tensor):
        mine = np.flatnonzero(units.tensor == t)
        begins = int(units.first_byte[mine].min())
        strides = units.row_stride[mine][tall[mine]]
        at = units.first_byte[mine] - begins
        if len(strides):
            row, column = np.divmod(at, int(strides[0]))
            pitch[mine] = -(-int(strides[0]) // line_bytes)
            first[mine] = end + row * pitch[mine] + column // line_bytes
            per_row[mine] = (column + units.row_bytes[mine] - 1) // line_bytes - column // line_bytes + 1
        else:
            first[mine] = end + at // line_bytes
        end = int((first[mine] + (units.rows[mine] - 1) * pitch[mine] + per_row[mine]).max())
    unit = stream.unit
    return Boxes(first[unit], units.rows[unit], pitch[unit], per_row[unit], stream.is_write)
