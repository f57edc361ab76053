"""Rank settings by prediction to decide which ones to measure.

Settings that make the same plan are the same launch. The plan is predicted once, and only the first of these settings
is ranked. Example, where the grid of ``a`` has a single group of rows:

    setting                       predicted us    rank
    a                             60              1
    b                             61              2
    a, groups of 8                60              none, same plan as a
    c                             70              3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from interlace.deploy import Deployment
from interlace.policies.setting import Setting

_CHEAP, _TOUCHES_PER_ITEM = 1 << 16, 64  # number of touches that a prediction resolves; minimum per item


@dataclass(frozen=True)
class RankedSetting:
    """A setting and its prediction.

    Attributes:
        setting: setting that was predicted.
        predicted_us: microseconds of one run.
        dram_read_bytes: bytes read from memory, with cold caches.
        plan: number of the plan, unique among ranked settings.
    """

    setting: Setting
    predicted_us: float
    dram_read_bytes: int
    plan: int


def rank(
    case: Deployment, settings: Sequence[Setting], progress: Callable[[int], None] = lambda done: None
) -> list[RankedSetting]:
    """Rank all settings that make different plans by predicted time, fastest first; ties keep the given order.

    Raises:
        SimulationError: a plan is too large to simulate.
    """
    # Both import numba, which takes as long as a command that predicts nothing.
    from interlace.planner.predict import Prediction, predict
    from interlace.planner.search import make_plan_key

    seen: dict[object, tuple[int, Prediction]] = {}
    launches = set()
    ranked = []
    for done, setting in enumerate(settings, 1):
        plan = case.build_plan(setting)
        key = make_plan_key(plan)
        if key not in seen:
            limit = max(_CHEAP, _TOUCHES_PER_ITEM * len(plan.items))
            seen[key] = len(seen), predict(plan, case.device, case.build_mode(plan), limit=limit)
        number, found = seen[key]
        progress(done)
        if number not in launches:
            launches.add(number)
            ranked.append(RankedSetting(setting, found.us, found.traffic.dram_read, number))
    return sorted(ranked, key=lambda r: r.predicted_us)


def select_best(ranked: Iterable[RankedSetting], top: int, needed: Setting) -> list[RankedSetting]:
    """Return the settings of the ``top`` plans with the best predictions, and of the needed setting's plan."""
    ranked = list(ranked)
    kept = set(list(dict.fromkeys(r.plan for r in ranked))[:top])
    kept.add(next(r.plan for r in ranked if r.setting == needed))
    return [r for r in ranked if r.plan in kept]
