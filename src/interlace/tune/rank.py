"""Rank schedules by prediction to decide which ones to measure.

Schedules that make the same plan are the same launch. The plan is predicted once, and only the first of these schedules
is ranked. Example, where the grid of ``a`` has a single group of rows:

    schedule                      predicted us    rank
    a                             60              1
    b                             61              2
    a, groups of 8                60              none, same plan as a
    c                             70              3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.executors import Executor
from interlace.graph.graph import Graph
from interlace.planner.build import build
from interlace.policies.schedule import Schedule

_CHEAP, _TOUCHES_PER_ITEM = 1 << 16, 64  # number of touches that a prediction resolves; minimum per item


@dataclass(frozen=True)
class RankedSchedule:
    """A schedule and its prediction.

    Attributes:
        schedule: schedule that was predicted.
        predicted_us: microseconds of one run.
        dram_read_bytes: bytes read from memory, with cold caches.
        plan: number of the plan, unique among ranked schedules.
    """

    schedule: Schedule
    predicted_us: float
    dram_read_bytes: int
    plan: int


def rank(
    graph: Graph,
    device: DeviceSpec,
    executor: type[Executor],
    schedules: Sequence[Schedule],
    progress: Callable[[int], None] = lambda done: None,
) -> list[RankedSchedule]:
    """Rank all schedules that make different plans by predicted time, fastest first; ties keep the given order.

    Raises:
        SimulationError: a plan is too large to simulate.
    """
    # Both import numba, which takes as long as a command that predicts nothing.
    from interlace.planner.predict import Prediction, predict
    from interlace.planner.search import make_plan_key

    seen: dict[object, tuple[int, Prediction]] = {}
    launches = set()
    ranked = []
    for done, schedule in enumerate(schedules, 1):
        plan = build(graph, schedule)
        key = make_plan_key(plan)
        if key not in seen:
            limit = max(_CHEAP, _TOUCHES_PER_ITEM * len(plan.items))
            seen[key] = len(seen), predict(plan, device, executor.build_mode(plan.graph, device), limit=limit)
        number, found = seen[key]
        progress(done)
        if number not in launches:
            launches.add(number)
            ranked.append(RankedSchedule(schedule, found.us, found.traffic.dram_read, number))
    return sorted(ranked, key=lambda r: r.predicted_us)


def select_best(ranked: Iterable[RankedSchedule], top: int, needed: Schedule) -> list[RankedSchedule]:
    """Return the schedules of the ``top`` plans with the best predictions, and of the needed schedule's plan."""
    ranked = list(ranked)
    kept = set(list(dict.fromkeys(r.plan for r in ranked))[:top])
    kept.add(next(r.plan for r in ranked if r.schedule == needed))
    return [r for r in ranked if r.plan in kept]
