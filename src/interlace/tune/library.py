"""Compare a tuned launch with PyTorch's own ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlace.bench.problem import BenchProblem
from interlace.bench.timing import time_rounds
from interlace.deploy import Deployment
from interlace.policies.setting import Setting
from interlace.workloads.base import Workload

_ROUNDS = 10


def measure_speedup(workload: Workload, launch: Deployment, setting: Setting) -> float:
    """Return the speedup of a launch over the fastest PyTorch configuration, the lesser of back to back and in a layer.

    Times are taken on the current CUDA device. PyTorch runs its own ops, or those of ``Workload.run_fused``.

    Raises:
        InterlaceError: the launch gives a wrong result, or does not run on this device.
    """
    problem = BenchProblem(workload, launch.device)
    executor = launch.make_executor(setting)
    problem.check(executor)
    ways = {"eager": problem.run_pytorch, "fused": problem.run_fused}
    functions = {**ways, "launch": problem.make_run(executor)}
    contests: list[dict[str, Callable[[], Any]]] = [{n: problem.make_rotation(f) for n, f in functions.items()}]
    if workload.layer_ports is not None:
        contests.append({n: problem.make_layer_rotation(problem.make_layer(f)) for n, f in functions.items()})
    ratios = []
    for contest in contests:
        rounds = time_rounds(contest, _ROUNDS, problem.runs)
        ratios.append(rounds.compute_ratio(rounds.find_fastest(ways), "launch"))
    return min(ratios)
