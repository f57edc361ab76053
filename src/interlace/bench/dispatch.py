"""Dispatch benchmark: how close each dispatch comes to the ideal time, for items of equal and unequal cost.

The ideal is the total work divided by the number of workers, or the longest item if that is more. No dispatch knows the
costs of items in advance, so long items may begin when little other work is left. With Zipf costs capped as below, no
dispatch can average better than 1.03 times the ideal over orders, for 4,096 items on 132 workers; with items twice as
long, 1.07. Costs of n items:

    uniform     all the same
    linear      i + 1 for item i
    zipf        (r + 1)^-1.2 for the item of rank r, in random order, capped at a twentieth of a worker's work
    giant       all the same except one in the middle, which costs as much as the work of a worker

The time beyond the ideal has four parts: launch, overhead per item, rounding, and the end of the run. With items of
equal cost c, a worker has n / workers items, rounded up, and

    time of a run = launch + items of a worker * (c + overhead)

``launch`` is the start and the end of a launch among others. ``overhead`` is the time from the end of an item to the
start of the next on the same worker. Runs with two different numbers of items separate the two. Rounding: 4,096 items
on 132 workers are 32 per worker instead of the ideal 31.03, a loss of 3.1 %. The end of the run costs time if costs are
unequal. Several runs are enqueued back to back and timed together, so that launches do not wait for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import int32
from interlace.core.errors import ArgumentError, ResultError
from interlace.executors.device import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentExecutor
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.spin import spin
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import STEAL_ONE, Stealing, Victim
from interlace.planner.build import build
from interlace.policies.schedule import Schedule

Ints32 = NDArray[np.int32]
Floats = NDArray[np.float64]

#: Rooms and modules that the figures depend on.
MEASURES = ("csrc", "executors", "kernels/primitives", "kernels/spin", "kernels/templates.py", "megakernel")
_MEAN_NS = 20_000  # mean cost of an item: about the time of a matmul tile
_EXPONENT = 1.2
_LONGEST = 0.05  # maximum cost of an item as a share of a worker's work: a longer item would be split
_ROUNDS = 20
_RUNS = 8  # number of runs timed together


@dataclass(frozen=True)
class _Variant:
    """A dispatch to measure: its name in the rows, its executor, and the arguments of its plan."""

    name: str
    executor: type[DeviceExecutor]
    dispatch: Dispatch
    stealing: Stealing = STEAL_ONE
    is_by_host: bool = False

    def build_plan(self, items: int, workers: int) -> Plan:
        """Build the plan of this number of items."""
        return build(_build_graph(items), Schedule(workers, self.dispatch, stealing=self.stealing))

    def make_executor(self, plan: Plan) -> DeviceExecutor:
        """Return an executor of the plan; it has a ``close`` method if the host dispatches."""
        options = RunOptions(dependent_launch=self.dispatch in self.executor.overlapping_dispatches)
        if not self.is_by_host:
            return self.executor(plan, options)
        from interlace.bench.host_dispatcher import HostDispatchedExecutor

        return HostDispatchedExecutor(plan, options)


_RANDOM = Victim.RANDOM
_VARIANTS = (
    _Variant("static", PersistentExecutor, Dispatch.STATIC),
    _Variant("ticket", PersistentExecutor, Dispatch.TICKET),
    _Variant("static", MegakernelExecutor, Dispatch.STATIC),
    _Variant("ticket", MegakernelExecutor, Dispatch.TICKET),
    _Variant("stealing", MegakernelExecutor, Dispatch.STEALING),
    _Variant("stealing:4", MegakernelExecutor, Dispatch.STEALING, Stealing(4)),
    _Variant("stealing-half", MegakernelExecutor, Dispatch.STEALING, Stealing(None)),
    _Variant("stealing-random", MegakernelExecutor, Dispatch.STEALING, Stealing(victim=_RANDOM)),
    _Variant("stealing-random-half", MegakernelExecutor, Dispatch.STEALING, Stealing(None, _RANDOM)),
    _Variant("hybrid", MegakernelExecutor, Dispatch.HYBRID),
    _Variant("queue", MegakernelExecutor, Dispatch.QUEUE),
    _Variant("dispatcher", MegakernelExecutor, Dispatch.DISPATCHER),
    _Variant("dispatcher, host", MegakernelExecutor, Dispatch.DISPATCHER, is_by_host=True),
)


@dataclass(frozen=True)
class _Items:
    """Plans of the same number of items by dispatch, and costs of the items by name."""

    plans: Mapping[_Variant, Plan]
    costs: Mapping[str, Ints32]


@dataclass(frozen=True)
class DispatchRow:
    """Times of one cost distribution under one dispatch.

    Attributes:
        costs: name of the cost distribution (see the module).
        executor: name of the executor.
        dispatch: name of the dispatch on the command line; the dispatcher on the host is only measured.
        ideal_us: lower bound on the time in microseconds.
        predicted_us: microseconds on the simulated machine.
        us: median microseconds on the GPU; None if nothing ran.
        busy: share of the workers' time that is spent in items, measured if anything ran, else predicted.
        overhead_ns: nanoseconds per item beyond its cost, measured or predicted likewise; None unless costs are uniform
            and workers have several items.
        launch_us: microseconds of a run outside its items, under the same conditions as ``overhead_ns``.
    """

    costs: str
    executor: str
    dispatch: str
    ideal_us: float
    predicted_us: float
    us: float | None
    busy: float
    overhead_ns: float | None
    launch_us: float | None

    def to_data(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return asdict(self)


def _make_uniform(items: int, workers: int) -> Floats:
    return np.ones(items)


def _make_linear(items: int, workers: int) -> Floats:
    return np.linspace(1.0, items, items, dtype=np.float64)


def _make_zipf(items: int, workers: int) -> Floats:
    costs: Floats = np.linspace(1.0, items, items, dtype=np.float64) ** -_EXPONENT
    for _ in range(items):  # capping the longest items lowers the mean, which lowers the cap again
        longest = _LONGEST * costs.sum() / workers
        if costs.max() <= longest * (1 + 1e-6) or items <= workers / _LONGEST:
            break
        costs = np.minimum(costs, longest)
    np.random.default_rng(0).shuffle(costs)
    return costs


def _make_giant(items: int, workers: int) -> Floats:
    costs = np.ones(items)
    if workers > 1:
        costs[items // 2] = max(1.0, (items - 1) / (workers - 1))  # work of each other worker
    return costs


_EVEN = "uniform"

#: Cost distributions by name: functions of items and workers that return the cost of each item, in any unit.
COSTS: Mapping[str, Callable[[int, int], Floats]] = {
    _EVEN: _make_uniform,
    "linear": _make_linear,
    "zipf": _make_zipf,
    "giant": _make_giant,
}


def generate_costs_ns(kind: str, items: int, workers: int) -> Ints32:
    """Return the cost of each item in integer nanoseconds, with a mean of 20 us.

    Raises:
        ArgumentError: the distribution is unknown, or the number of items or workers is below one.
    """
    if kind not in COSTS or items < 1 or workers < 1:
        raise ArgumentError(f"{kind} costs of {items} items on {workers} workers; use one of {', '.join(COSTS)}")
    costs = COSTS[kind](items, workers)
    ns: Ints32 = np.rint(costs * (_MEAN_NS / costs.mean())).astype(np.int32)
    return ns


def measure_rows(device: DeviceSpec, items: int, measure: bool) -> list[DispatchRow]:
    """Return a row per dispatch and costs: predicted for a device and, if ``measure``, timed on the current one.

    Raises:
        ArgumentError: the number of items is below one.
        NoDeviceError, DeviceError: the measured executors cannot run on this device.
        ResultError: an item did not run.
    """
    workers = device.sms
    ways = [
        way
        for way in _VARIANTS
        if way.executor.fallback_reason(_build_graph(items), device) is None and (measure or not way.is_by_host)
    ]
    kinds = {kind: generate_costs_ns(kind, items, workers) for kind in COSTS}
    several = _Items({way: way.build_plan(items, workers) for way in ways}, kinds)
    single = _Items({way: way.build_plan(workers, workers) for way in ways}, {_EVEN: kinds[_EVEN][:1].repeat(workers)})
    times = _measure((several, single)) if measure else ({}, {})
    told = []
    for kind, ns in kinds.items():
        for way in ways:
            us = times[0].get((kind, way))
            predicted_us = predict_ns(several.plans[way], ns, way.executor, device) / 1e3
            one_us = None
            if kind == _EVEN and items > workers:
                one_us = predict_ns(single.plans[way], single.costs[kind], way.executor, device) / 1e3
                one_us = times[1].get((kind, way), one_us)
            told.append(_build_row(kind, ns, way, several.plans[way].workers, predicted_us, us, one_us))
    return told


def _build_graph(items: int) -> Graph:
    ns, out = Tensor("ns", (items,), int32), Tensor("out", (items,), int32)
    return Graph("spin", (ns, out), (spin("spin", ns, out),), ("ns",), ("out",))


def _build_row(
    kind: str, ns: Ints32, way: _Variant, workers: int, predicted_us: float, us: float | None, one_us: float | None
) -> DispatchRow:
    """Build a row; ``one_us`` is the time of a run with one item per worker, of uniform cost."""
    total_us = float(ns.sum()) / 1e3
    took_us = predicted_us if us is None else us
    ideal_us, busy = max(total_us / workers, float(ns.max()) / 1e3), total_us / (workers * took_us)
    row = DispatchRow(kind, way.executor.name, way.name, ideal_us, predicted_us, us, busy, None, None)
    if one_us is None:
        return row
    each, cost_us = -(-len(ns) // workers), float(ns[0]) / 1e3  # number of items of the busiest worker
    overhead_us = (took_us - one_us) / (each - 1) - cost_us
    return replace(row, overhead_ns=overhead_us * 1e3, launch_us=one_us - cost_us - overhead_us)


def predict_ns(plan: Plan, ns: Ints32, executor: type[DeviceExecutor], device: DeviceSpec) -> int:
    """Return the simulated time from the first to the last item, for tiles that load nothing and take ``ns`` each.

    Raises:
        SimulationError, PlanError: see ``simulate``.
    """
    from interlace.sim.machine import Costs, compute_op_rates, simulate

    device = replace(device, latencies=replace(device.latencies, fill_ns=0.0))
    mode = executor.build_mode(plan.graph, device)
    flops = ns[plan.items.tile] * compute_op_rates(plan.graph, device, mode)[0] / (device.sms * 1e9)
    nothing = np.zeros(len(ns))
    return simulate(plan, Costs(flops, nothing, nothing, nothing, nothing), device, mode).span_ns


def _measure(sets: Sequence[_Items]) -> list[dict[tuple[str, _Variant], float]]:
    """Return the microseconds of a run by costs and dispatch; replays of all are interleaved."""
    import torch

    from interlace.bench.timing import time_medians

    keys = [(n, kind, way) for n, some in enumerate(sets) for kind in some.costs for way in some.plans]
    made = {(n, way): way.make_executor(plan) for n, some in enumerate(sets) for way, plan in some.plans.items()}
    costs = {(n, kind): ns for n, some in enumerate(sets) for kind, ns in some.costs.items()}
    given = {key: torch.tensor(ns, device="cuda") for key, ns in costs.items()}
    outs = {key: torch.zeros_like(given[key[:2]]) for key in keys}

    def enqueue(n: int, kind: str, way: _Variant) -> None:
        for _ in range(_RUNS):
            made[n, way].run({"ns": given[n, kind], "out": outs[n, kind, way]})

    try:
        times = time_medians({str(at): partial(enqueue, *key) for at, key in enumerate(keys)}, _ROUNDS, _RUNS)
        for (n, kind, way), out in outs.items():
            made[n, way].synchronize()
            if not torch.equal(out, given[n, kind]):
                raise ResultError(f"{way.executor.name}, {way.name} dispatch: items of {kind} costs were left out")
    finally:
        for (_, way), executor in made.items():
            if way.is_by_host:
                executor.close()  # type: ignore[attr-defined]
    found: list[dict[tuple[str, _Variant], float]] = [{} for _ in sets]
    for at, (n, kind, way) in enumerate(keys):
        found[n][kind, way] = times[str(at)].median_us
    return found
