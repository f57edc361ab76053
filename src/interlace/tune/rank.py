"""Which settings are worth measuring, by prediction.

Settings that differ in nothing that prediction knows of, as in how many loads are in flight, make the same plan. It is
predicted once, and counts once among the best; settings that do not even differ in that are the same launch, of which
the first is kept.

    setting                       predicted us    rank
    a, 4 stages in flight         60              1
    b                             61              2
    a, 6 stages in flight         60              1      the best 2 are all three of these
    c                             70              3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from interlace.deploy import Deployment
from interlace.policies.setting import Setting

_CHEAP, _EACH = 1 << 16, 64  # touches that a prediction tells apart; so many of each item in any case


@dataclass(frozen=True)
class Ranked:
    """A setting and what is predicted of it.

    Attributes:
        setting: which.
        predicted_us: time of one run.
        dram_read_bytes: read from memory, with cold caches.
        plan: equal for settings that make the same plan.
    """

    setting: Setting
    predicted_us: float
    dram_read_bytes: int
    plan: int


def rank(
    case: Deployment, settings: Sequence[Setting], progress: Callable[[int], None] = lambda done: None
) -> list[Ranked]:
    """All settings that make different launches, the fastest by prediction first; of equals, the one given first.

    Raises:
        SimulationError: a plan is too large to simulate.
    """
    # Both load numba, which takes as long as a command that predicts nothing.
    from interlace.planner.predict import Prediction, predict
    from interlace.planner.search import identity

    seen: dict[object, tuple[int, Prediction]] = {}
    launches = set()
    ranked = []
    for done, setting in enumerate(settings, 1):
        plan = case.plan(setting)
        key = identity(plan)
        if key not in seen:
            limit = max(_CHEAP, _EACH * len(plan.items))
            seen[key] = len(seen), predict(plan, case.device, case.mode(plan), limit=limit)
        number, found = seen[key]
        progress(done)
        if number not in launches:
            launches.add(number)
            ranked.append(Ranked(setting, found.us, found.traffic.dram_read, number))
    return sorted(ranked, key=lambda r: r.predicted_us)


def best(ranked: Iterable[Ranked], top: int, needed: Setting) -> list[Ranked]:
    """Settings of the ``top`` plans that are predicted best, and of the needed one's."""
    ranked = list(ranked)
    kept = set(list(dict.fromkeys(r.plan for r in ranked))[:top])
    kept.add(next(r.plan for r in ranked if r.setting == needed))
    return [r for r in ranked if r.plan in kept]
