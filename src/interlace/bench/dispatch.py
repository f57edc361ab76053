"""Who takes which item when: how near each dispatch comes to the ideal, for items of equal and of unequal cost.

The ideal is the work of all items over the workers, or the longest item if that is more. What an item costs is not
known to whoever hands it out, so long items may begin when little else is left: with those of Zipf's law as long as
here, no dispatch can do better than 1.03 times the ideal with 4,096 items on 132 workers, in the mean over orders; with
items twice as long it would be 1.07. Costs of n items:

    uniform     the same
    linear      i + 1 for item i
    zipf        (r + 1)^-1.2 for the item of rank r, in random order, but no more than a twentieth of a worker's work
    giant       the same, but one in the middle, which is as much as the work of a worker

What it takes beyond the ideal has four parts. With items of equal cost c, each worker has n / workers of them, rounded
up, and

    time of a run = launch + items of a worker * (c + overhead)

where ``launch`` is the beginning and the end of a launch among others, and ``overhead`` the way from the end of an item
to the beginning of the next on its worker. Two numbers of items tell the two apart. 4,096 items on 132 workers are 32
each where 31.03 would be the ideal, 3.1 % by itself. The fourth part is the end, where costs are not equal. Runs are
timed several at a time, one behind the other, so that launches do not wait for the host.
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
from interlace.executors.one_launch import OneLaunchExecutor
from interlace.executors.options import Options
from interlace.executors.persistent import PersistentExecutor
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.spin import spin
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import ONE, Stealing, Victim
from interlace.planner.build import Choices, build

Ints32 = NDArray[np.int32]
Floats = NDArray[np.float64]

#: What decides the figures.
MEASURES = ("executors", "kernels/primitives", "kernels/spin", "kernels/templates.py", "launch")
_MEAN_NS = 20_000  # of an item: about what a tile of a matmul takes
_EXPONENT = 1.2
_LONGEST = 0.05  # of a worker's work: a longer item would be split
_ROUNDS = 20
_RUNS = 8  # timed at a time


@dataclass(frozen=True)
class _Way:
    """Who hands out the items: what a row calls it, and what the plan is built with."""

    name: str
    executor: type[DeviceExecutor]
    dispatch: Dispatch
    stealing: Stealing = ONE
    by_host: bool = False

    def plan(self, items: int, workers: int) -> Plan:
        """Of so many items."""
        return build(_graph(items), Choices(workers, self.dispatch, stealing=self.stealing))

    def make(self, plan: Plan) -> DeviceExecutor:
        """Ready to run, with a ``close`` if the host hands out."""
        options = Options(dependent_launch=self.dispatch in self.executor.overlapping)
        if not self.by_host:
            return self.executor(plan, options)
        from interlace.bench.host_dispatcher import HostDispatchedExecutor

        return HostDispatchedExecutor(plan, options)


_RANDOM = Victim.RANDOM
_WAYS = (
    _Way("static", PersistentExecutor, Dispatch.STATIC),
    _Way("ticket", PersistentExecutor, Dispatch.TICKET),
    _Way("static", OneLaunchExecutor, Dispatch.STATIC),
    _Way("ticket", OneLaunchExecutor, Dispatch.TICKET),
    _Way("stealing", OneLaunchExecutor, Dispatch.STEALING),
    _Way("stealing:4", OneLaunchExecutor, Dispatch.STEALING, Stealing(4)),
    _Way("stealing-half", OneLaunchExecutor, Dispatch.STEALING, Stealing(None)),
    _Way("stealing-random", OneLaunchExecutor, Dispatch.STEALING, Stealing(victim=_RANDOM)),
    _Way("stealing-random-half", OneLaunchExecutor, Dispatch.STEALING, Stealing(None, _RANDOM)),
    _Way("hybrid", OneLaunchExecutor, Dispatch.HYBRID),
    _Way("queue", OneLaunchExecutor, Dispatch.QUEUE),
    _Way("dispatcher", OneLaunchExecutor, Dispatch.DISPATCHER),
    _Way("dispatcher, host", OneLaunchExecutor, Dispatch.DISPATCHER, by_host=True),
)


@dataclass(frozen=True)
class _Items:
    """As many items for each way to hand them out, of several costs by their name."""

    plans: Mapping[_Way, Plan]
    costs: Mapping[str, Ints32]


@dataclass(frozen=True)
class Row:
    """Items of some costs under one dispatch.

    Attributes:
        costs: which; see the module.
        executor: by name.
        dispatch: which, by its name on the command line; the dispatcher on the host is measured only.
        ideal_us: the least that it could take.
        predicted_us: on the simulated machine.
        us: median on the GPU; None if nothing ran.
        busy: share of the workers' time that items take, as measured, or as predicted if nothing ran.
        overhead_ns: what an item takes of its worker beyond its cost, the same; of uniform costs, where all workers
            have several, else None.
        launch_us: what a run takes beside its items, the same.
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
        """As JSON."""
        return asdict(self)


def _uniform(items: int, workers: int) -> Floats:
    return np.ones(items)


def _linear(items: int, workers: int) -> Floats:
    return np.linspace(1.0, items, items, dtype=np.float64)


def _zipf(items: int, workers: int) -> Floats:
    costs: Floats = np.linspace(1.0, items, items, dtype=np.float64) ** -_EXPONENT
    for _ in range(items):  # what is cut off the longest lowers the mean, and with it what is too long
        longest = _LONGEST * costs.sum() / workers
        if costs.max() <= longest * (1 + 1e-6) or items <= workers / _LONGEST:
            break
        costs = np.minimum(costs, longest)
    np.random.default_rng(0).shuffle(costs)
    return costs


def _giant(items: int, workers: int) -> Floats:
    costs = np.ones(items)
    if workers > 1:
        costs[items // 2] = max(1.0, (items - 1) / (workers - 1))  # what the others are of each other worker
    return costs


_EVEN = "uniform"

#: Costs by name: items, workers -> what each costs, in any unit.
COSTS: Mapping[str, Callable[[int, int], Floats]] = {
    _EVEN: _uniform,
    "linear": _linear,
    "zipf": _zipf,
    "giant": _giant,
}


def costs_ns(kind: str, items: int, workers: int) -> Ints32:
    """What each item costs, in whole nanoseconds, 20 us in the mean.

    Raises:
        ArgumentError: no such costs, or fewer than one item or worker.
    """
    if kind not in COSTS or items < 1 or workers < 1:
        raise ArgumentError(f"{kind} costs of {items} items on {workers} workers; use one of {', '.join(COSTS)}")
    costs = COSTS[kind](items, workers)
    ns: Ints32 = np.rint(costs * (_MEAN_NS / costs.mean())).astype(np.int32)
    return ns


def rows(device: DeviceSpec, items: int, measured: bool) -> list[Row]:
    """Every dispatch for all costs, predicted for a device, and measured on the current one if it is here.

    Raises:
        ArgumentError: fewer than one item.
        NoDeviceError, DeviceError: what is measured cannot run here.
        ResultError: an item was left out.
    """
    workers = device.sms
    ways = [
        way
        for way in _WAYS
        if way.executor.obstacle(_graph(items), device) is None and (measured or not way.by_host)
    ]
    kinds = {kind: costs_ns(kind, items, workers) for kind in COSTS}
    several = _Items({way: way.plan(items, workers) for way in ways}, kinds)
    single = _Items({way: way.plan(workers, workers) for way in ways}, {_EVEN: kinds[_EVEN][:1].repeat(workers)})
    times = _measured((several, single)) if measured else ({}, {})
    told = []
    for kind, ns in kinds.items():
        for way in ways:
            us = times[0].get((kind, way))
            predicted_us = predicted_ns(several.plans[way], ns, way.executor, device) / 1e3
            one_us = None
            if kind == _EVEN and items > workers:
                one_us = predicted_ns(single.plans[way], single.costs[kind], way.executor, device) / 1e3
                one_us = times[1].get((kind, way), one_us)
            told.append(_row(kind, ns, way, several.plans[way].workers, predicted_us, us, one_us))
    return told


def _graph(items: int) -> Graph:
    ns, out = Tensor("ns", (items,), int32), Tensor("out", (items,), int32)
    return Graph("spin", (ns, out), (spin("spin", ns, out),), ("ns",), ("out",))


def _row(
    kind: str, ns: Ints32, way: _Way, workers: int, predicted_us: float, us: float | None, one_us: float | None
) -> Row:
    """``one_us`` took a run of one item for each worker, of even cost."""
    total_us = float(ns.sum()) / 1e3
    took_us = predicted_us if us is None else us
    ideal_us, busy = max(total_us / workers, float(ns.max()) / 1e3), total_us / (workers * took_us)
    row = Row(kind, way.executor.name, way.name, ideal_us, predicted_us, us, busy, None, None)
    if one_us is None:
        return row
    each, cost_us = -(-len(ns) // workers), float(ns[0]) / 1e3  # items of the worker that has most
    overhead_us = (took_us - one_us) / (each - 1) - cost_us
    return replace(row, overhead_ns=overhead_us * 1e3, launch_us=one_us - cost_us - overhead_us)


def predicted_ns(plan: Plan, ns: Ints32, executor: type[DeviceExecutor], device: DeviceSpec) -> int:
    """From the first item to the last on the simulated machine, of tiles that load nothing and take what they are told.

    Raises:
        SimulationError, PlanError: as ``simulate``.
    """
    from interlace.sim.machine import Costs, op_rates, simulate

    device = replace(device, latencies=replace(device.latencies, fill_ns=0.0))
    mode = executor.mode(plan.graph, device)
    flops = ns[plan.items.tile] * op_rates(plan.graph, device, mode)[0] / (device.sms * 1e9)
    nothing = np.zeros(len(ns))
    return simulate(plan, Costs(flops, nothing, nothing, nothing, nothing), device, mode).span_ns


def _measured(sets: Sequence[_Items]) -> list[dict[tuple[str, _Way], float]]:
    """Microseconds of a run of each, by costs and way; replays of all are interleaved."""
    import torch

    from interlace.bench.timing import median_us

    keys = [(n, kind, way) for n, some in enumerate(sets) for kind in some.costs for way in some.plans]
    made = {(n, way): way.make(plan) for n, some in enumerate(sets) for way, plan in some.plans.items()}
    costs = {(n, kind): ns for n, some in enumerate(sets) for kind, ns in some.costs.items()}
    given = {key: torch.tensor(ns, device="cuda") for key, ns in costs.items()}
    outs = {key: torch.zeros_like(given[key[:2]]) for key in keys}

    def enqueue(n: int, kind: str, way: _Way) -> None:
        for _ in range(_RUNS):
            made[n, way].run({"ns": given[n, kind], "out": outs[n, kind, way]})

    try:
        times = median_us({str(at): partial(enqueue, *key) for at, key in enumerate(keys)}, _ROUNDS, _RUNS)
        for (n, kind, way), out in outs.items():
            made[n, way].synchronize()
            if not torch.equal(out, given[n, kind]):
                raise ResultError(f"{way.executor.name}, {way.name} dispatch: items of {kind} costs were left out")
    finally:
        for (_, way), executor in made.items():
            if way.by_host:
                executor.close()  # type: ignore[attr-defined]
    found: list[dict[tuple[str, _Way], float]] = [{} for _ in sets]
    for at, (n, kind, way) in enumerate(keys):
        found[n][kind, way] = times[str(at)].median_us
    return found
