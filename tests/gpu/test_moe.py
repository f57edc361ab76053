"""A mixture of experts on a GPU: any routing on every executor, as right as PyTorch, run after run."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.kernels.experts import expert_matmul
from interlace.workloads import MoE
from interlace.workloads.moe import Routing

from ..cases import TORCH, relative_error

EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.CudaGraphExecutor, il.Schedule(132)),
    (il.StreamsExecutor, il.Schedule(132)),
    (il.PersistentExecutor, il.Schedule(132)),
    (il.PersistentExecutor, il.Schedule(132, il.Dispatch.STATIC, policy=il.RowSync())),
    *((il.MegakernelExecutor, il.Schedule(132, dispatch, policy=il.RowSync())) for dispatch in il.Dispatch),
)


def tensors(graph: il.Graph, problem: MoE, seed: int = 0) -> dict[str, torch.Tensor]:
    given, random, found = problem.make_host_inputs(seed), torch.Generator("cuda").manual_seed(seed), {}
    for tensor in map(graph.tensor, graph.inputs):
        value = torch.empty(tensor.shape, dtype=TORCH[tensor.dtype.name], device="cuda")
        if tensor.name in given:
            found[tensor.name] = value.copy_(torch.from_numpy(given[tensor.name]))
        else:
            found[tensor.name] = value.normal_(0.0, problem.get_deviation(tensor), generator=random)
    return found | {"out": torch.full_like(found["x"], float("nan"))}


def compute_exact(problem: MoE, t: dict[str, torch.Tensor]) -> torch.Tensor:
    return problem.run_dense(torch, {name: value.double() for name, value in t.items()})["out"]


@pytest.mark.parametrize(("executor", "schedule"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("tokens", [1, 33, 500])
def test_any_routing_is_as_right_as_pytorch(
    executor: type[DeviceExecutor], schedule: il.Schedule, routing: Routing, tokens: int
) -> None:
    problem = MoE(256, 384, 12, 3, tokens, routing)
    graph = problem.build_graph(il.H200)
    run = executor(il.build(graph, schedule), il.RunOptions(timeout_s=10.0))
    for seed in range(3):  # other routings under one plan
        t = tensors(graph, problem, seed)
        run.run(t)
        run.synchronize()
        gold = compute_exact(problem, t)
        assert relative_error(t["out"], gold) <= 1.5 * relative_error(problem.run_dense(torch, t)["out"], gold)


@pytest.mark.parametrize("tokens", [1, 64, 300])
@pytest.mark.parametrize("preset", ["mixtral-8x7b", "deepseek-moe-16b"])
def test_models_of_experts_are_right_in_one_launch_that_overlaps_the_one_before(preset: str, tokens: int) -> None:
    problem = MoE.from_fields({"tokens": tokens, "routing": Routing.SKEWED}, True, preset)
    graph = problem.build_graph(il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=10.0, dependent_launch=True))
    t = {name: torch.randn(graph.tensor(name).shape, device="cuda", dtype=torch.bfloat16) for name in problem.weights}
    for name, value in t.items():
        value.mul_(graph.tensor(name).shape[-1] ** -0.5)
    t["x"] = torch.randn(graph.tensor("x").shape, device="cuda", dtype=torch.bfloat16)
    outs = []
    for seed in range(3):  # one behind the other, each over what the one before left
        t["logits"] = torch.from_numpy(problem.make_logits(seed)).cuda()
        outs.append((t["logits"], torch.full_like(t["x"], float("nan"))))
        run.run(t | {"out": outs[-1][1]})
    run.synchronize()
    for logits, out in outs:
        gold = by_expert(problem, t | {"logits": logits})
        assert relative_error(out, gold) < 8e-3


def by_expert(problem: MoE, t: dict[str, torch.Tensor]) -> torch.Tensor:
    """In float64, of one expert at a time: all weights would not fit."""
    experts, share = problem._route(torch, t)
    out = torch.zeros(t["x"].shape, device="cuda", dtype=torch.float64)
    for e in range(problem.experts):
        token, which = torch.nonzero(experts == e, as_tuple=True)
        if len(token):
            x, gate, up, down = (v.double() for v in (t["x"][token], t["gate"][e], t["up"][e], t["down"][e]))
            h = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
            out.index_add_(0, token, share[token, which].double()[:, None] * (h @ down.T))
    return out


def test_tiles_of_no_expert_are_zero_in_one_launch() -> None:
    tiles, experts, (k, n) = 6, 3, (192, 136)
    shapes = {"x": (tiles * 16, k), "weight": (experts, n, k), "gate": (experts, n, k), "out": (tiles * 16, n)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    t["owner"] = il.Tensor("owner", (tiles,), il.int32)
    tile = il.MatmulTile(16, 64, 128)
    op = expert_matmul("up", t["x"], t["owner"], t["weight"], t["out"], gate=t["gate"], tile=tile)
    graph = il.Graph("up", (*t.values(),), (op,), ("x", "weight", "gate", "owner"), ("out",))
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(7)), il.RunOptions(timeout_s=10.0))
    given = {name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name, shape in shapes.items()}
    given["owner"] = torch.tensor([2, -1, 0, experts, 1 << 30, 1], device="cuda", dtype=torch.int32)
    given["out"].fill_(float("nan"))
    run.run(given)
    run.synchronize()
    exact = {name: value.double().cpu().numpy() for name, value in given.items() if name != "out"}
    right = il.ReferenceExecutor(il.build(graph, il.Schedule(1))).run(exact)["out"]
    assert relative_error(given["out"], torch.from_numpy(right).cuda()) < 4e-3
    unowned = torch.tensor([1, 3, 4], device="cuda")
    assert (given["out"].view(tiles, -1)[unowned] == 0).all()


@pytest.mark.parametrize("executor", [il.PersistentExecutor, il.MegakernelExecutor])
@pytest.mark.parametrize("logits", ["two experts", "no numbers"])
def test_logits_of_any_kind_leave_the_device_usable(executor: type[DeviceExecutor], logits: str) -> None:
    problem = MoE(256, 384, 8, 2, 300)
    graph = problem.build_graph(il.H200)
    run = executor(il.build(graph, il.Schedule(132)), il.RunOptions(timeout_s=10.0))
    t = tensors(graph, problem)
    usual = t["logits"]
    t["logits"] = (
        torch.full_like(usual, float("nan")) if logits == "no numbers" else usual - 50 * torch.arange(8).cuda()
    )
    run.run(t)
    run.synchronize()
    if logits == "two experts":
        assert relative_error(t["out"], compute_exact(problem, t)) < 0.02
    t["logits"] = usual
    run.run(t)
    run.synchronize()
    assert relative_error(t["out"], compute_exact(problem, t)) < 0.02
