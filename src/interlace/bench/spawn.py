"""Spawn benchmark: the gain from running only requested tiles, and the cost of each termination protocol.

The workload is ``quadrature``. Under ticket dispatch and from a queue of ready items, workers claim every interval of
every level, and skip those that are not requested. Under spawn dispatch, those intervals are never enqueued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import ResultError
from interlace.executors.megakernel import MegakernelExecutor
from interlace.megakernel.options import RunOptions, Termination
from interlace.plan.plan import Dispatch, Plan
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.workloads.quadrature import Quadrature

_ROUNDS = 20
_SEED = 0
_OFF = 1e-4  # tolerance relative to the integral: float32 and float64 may request slightly different intervals
_CONFIGURATIONS: tuple[tuple[Dispatch, Termination | None], ...] = (
    (Dispatch.TICKET, None),
    (Dispatch.QUEUE, None),
    *((Dispatch.SPAWN, termination) for termination in Termination),
)


@dataclass(frozen=True)
class SpawnRow:
    """Results of one configuration of the workload.

    Attributes:
        dispatch: value of the dispatch.
        termination: value of the termination protocol; empty if nothing is spawned.
        items: number of items that workers claim.
        wanted: number of these items that compute.
        predicted_us: microseconds on the simulated machine, which does not model termination protocols.
        us: median microseconds on the GPU; None if nothing ran.
    """

    dispatch: str
    termination: str
    items: int
    wanted: int
    predicted_us: float
    us: float | None

    def to_data(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return asdict(self)


def measure_rows(device: DeviceSpec, measure: bool, problem: Quadrature | None = None) -> list[SpawnRow]:
    """Return a row per configuration, predicted for a device and, if ``measure``, timed on the current one.

    Raises:
        NoDeviceError, DeviceError: the measured executors cannot run on this device.
        ResultError: an integral is wrong.
    """
    from interlace.sim.machine import Costs, compute_item_flops, simulate

    problem = Quadrature.from_fields({}, gpu=True) if problem is None else problem
    graph, wanted = problem.build_graph(device), problem.find_wanted_intervals(_SEED)
    if MegakernelExecutor.fallback_reason(graph, device) is not None:
        return []
    plans = {dispatch: build(graph, Schedule(device.sms, dispatch)) for dispatch, _ in _CONFIGURATIONS}
    times = _measure(problem, plans) if measure else {}
    found = []
    for dispatch, termination in _CONFIGURATIONS:
        plan = plans[dispatch]
        runs = np.append(wanted, True)[plan.tile_of_item]
        nothing = np.zeros(len(runs))
        costs = Costs(compute_item_flops(plan) * runs, nothing, nothing, nothing, nothing)
        trace = simulate(plan, costs, device, MegakernelExecutor.build_mode(graph, device), runs)
        found.append(
            SpawnRow(
                dispatch.value,
                "" if termination is None else termination.value,
                len(trace.op),
                int(runs.sum()),
                trace.span_ns / 1e3,
                times.get((dispatch, termination)),
            )
        )
    return found


def _measure(problem: Quadrature, plans: Mapping[Dispatch, Plan]) -> dict[tuple[Dispatch, Termination | None], float]:
    """Return the microseconds of each configuration; replays of all are interleaved."""
    import torch

    from interlace.bench.timing import time_medians

    inputs = problem.make_inputs(_SEED)
    given = {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}
    right = float(problem.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})["out"][0])
    made = {
        way: MegakernelExecutor(plans[way[0]], RunOptions() if way[1] is None else RunOptions(termination=way[1]))
        for way in _CONFIGURATIONS
    }
    outs = {way: torch.zeros(1, device="cuda") for way in _CONFIGURATIONS}

    def enqueue(way: tuple[Dispatch, Termination | None]) -> None:
        made[way].run({**given, "out": outs[way]})

    times = time_medians({str(n): partial(enqueue, way) for n, way in enumerate(_CONFIGURATIONS)}, _ROUNDS)
    for way, out in outs.items():
        made[way].synchronize()
        if not abs(out.item() - right) <= _OFF * abs(right):
            name = way[0].value if way[1] is None else f"{way[0].value}, {way[1].value}"
            raise ResultError(f"under {name} dispatch the integral is {out.item()}, and should be {right}")
    return {way: times[str(n)].median_us for n, way in enumerate(_CONFIGURATIONS)}
