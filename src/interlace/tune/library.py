"""Compare a tuned launch with PyTorch's own ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlace.bench.problem import Problem
from interlace.bench.timing import rounds_us
from interlace.deploy import Deployment
from interlace.policies.setting import Setting
from interlace.workloads.base import Workload

_ROUNDS = 10


def times_faster(workload: Workload, launch: Deployment, setting: Setting) -> float:
    """Return the speedup of a launch over the fastest PyTorch configuration, the lesser of back to back and in a layer.

    Times are taken on the current CUDA device. PyTorch runs its own ops, or those of ``Workload.fused``.

    Raises:
        InterlaceError: the launch gives a wrong result, or does not run on this device.
    """
    problem = Problem(workload, launch.device)
    executor = launch.make(setting)
    problem.check(executor)
    ways = {"eager": problem.pytorch, "fused": problem.fused}
    functions = {**ways, "launch": problem.run(executor)}
    contests: list[dict[str, Callable[[], Any]]] = [{n: problem.every(f) for n, f in functions.items()}]
    if workload.carried is not None:
        contests.append({n: problem.every_layer(problem.layer(f)) for n, f in functions.items()})
    ratios = []
    for contest in contests:
        rounds = rounds_us(contest, _ROUNDS, problem.runs)
        ratios.append(rounds.ratio(rounds.fastest(ways), "launch"))
    return min(ratios)
