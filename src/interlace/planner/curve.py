"""DRAM reads of a plan as a function of the L2 capacity: one pass over its accesses per capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from interlace.core.devices import DeviceSpec
from interlace.plan.plan import Plan
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import interleave
from interlace.sim.modes import PERSISTENT, Mode
from interlace.sim.traffic import list_touches


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
        l2 = replace(device.l2, side_bytes=capacity // device.l2.sides)
        read.append(int(simulate_missed_bytes(stream, touched.units.nbytes, l2)[~stream.is_write].sum()))
    return read
