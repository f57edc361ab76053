"""What was found, timed against PyTorch's own ops."""

from __future__ import annotations

from functools import partial

from interlace.bench.case import FFNCase
from interlace.bench.problem import FFNProblem, in_a_model, pytorch_ffn
from interlace.bench.timing import rounds_us
from interlace.executors.gpu import open_device
from interlace.policies.setting import Setting

_ROUNDS = 10


def times_faster(case: FFNCase, setting: Setting) -> float:
    """The fastest of PyTorch's times over that of one launch, back to back or in a layer, whichever is less.

    On the current CUDA device. PyTorch runs its ops, or its matmuls and the gate as one kernel.

    Raises:
        InterlaceError: the launch is wrong, or does not run here.
    """
    torch, _ = open_device("cuda")
    problem = FFNProblem(case.m, case.shape, case.dtype)
    executor = case.deployment.make(setting)
    problem.check(executor)
    ways = {"eager": problem.pytorch, "fused": pytorch_ffn(torch, case.shape, fused=True)}
    alone = {name: problem.every(partial(way, problem.x)) for name, way in ways.items()}
    alone["launch"] = problem.every(problem.run(executor))
    layer = {name: problem.every_layer(in_a_model(torch, way)) for name, way in ways.items()}
    layer["launch"] = problem.every_layer(in_a_model(torch, problem.ffn(executor)))
    ratios = []
    for functions in (alone, layer):
        rounds = rounds_us(functions, _ROUNDS, problem.runs)
        library = rounds.times[rounds.fastest(ways)].median_us
        ratios.append(library / rounds.times["launch"].median_us)
    return min(ratios)
