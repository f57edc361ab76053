"""A mixture of experts on a GPU: any routing on every executor, as right as PyTorch, run after run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads import MoE
from interlace.workloads.moe import Routing

from ..cases import TORCH, relative_error

EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Choices], ...] = (
    (il.SerialExecutor, il.Choices(132)),
    (il.CudaGraphExecutor, il.Choices(132)),
    (il.StreamsExecutor, il.Choices(132)),
    (il.PersistentExecutor, il.Choices(132)),
    (il.PersistentExecutor, il.Choices(132, il.Dispatch.STATIC, policy=il.RowSync())),
)


def tensors(graph: il.Graph, problem: MoE, seed: int = 0) -> dict[str, torch.Tensor]:
    drawn = {name: torch.from_numpy(np.asarray(value)) for name, value in problem.inputs(seed).items()}
    found = {name: value.to("cuda", TORCH[graph.tensor(name).dtype.name]) for name, value in drawn.items()}
    return found | {"out": torch.full_like(found["x"], float("nan"))}


def right(problem: MoE, t: dict[str, torch.Tensor]) -> torch.Tensor:
    return problem.dense(torch, {name: value.double() for name, value in t.items()})["out"]


@pytest.mark.parametrize(("executor", "choices"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("tokens", [1, 33, 500])
def test_any_routing_is_as_right_as_pytorch(
    executor: type[DeviceExecutor], choices: il.Choices, routing: Routing, tokens: int
) -> None:
    problem = MoE(256, 384, 12, 3, tokens, routing)
    graph = problem.graph(il.H200)
    run = executor(il.build(graph, choices), il.Options(timeout_s=10.0))
    for seed in range(3):  # other routings under one plan
        t = tensors(graph, problem, seed)
        run.run(t)
        run.synchronize()
        gold = right(problem, t)
        assert relative_error(t["out"], gold) <= 1.5 * relative_error(problem.dense(torch, t)["out"], gold)


@pytest.mark.parametrize("logits", ["two experts", "no numbers"])
def test_logits_of_any_kind_leave_the_device_usable(logits: str) -> None:
    problem = MoE(256, 384, 8, 2, 300)
    graph = problem.graph(il.H200)
    run = il.PersistentExecutor(il.build(graph, il.Choices(132)), il.Options(timeout_s=10.0))
    t = tensors(graph, problem)
    usual = t["logits"]
    t["logits"] = (
        torch.full_like(usual, float("nan")) if logits == "no numbers" else usual - 50 * torch.arange(8).cuda()
    )
    run.run(t)
    run.synchronize()
    if logits == "two experts":
        assert relative_error(t["out"], right(problem, t)) < 0.02
    t["logits"] = usual
    run.run(t)
    run.synchronize()
    assert relative_error(t["out"], right(problem, t)) < 0.02
