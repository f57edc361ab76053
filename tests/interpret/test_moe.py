"""A mixture of experts under the Triton interpreter: routing and experts' matmuls, whatever the routing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.kernels.routing import route
from interlace.workloads import MoE, moe
from interlace.workloads.moe import Routing

from ..cases import TORCH, relative_error
from .cases import executor


def run(executor: DeviceExecutor, given: dict[str, np.ndarray]) -> torch.Tensor:
    graph = executor.plan.graph
    tensors = {name: torch.from_numpy(value).to(TORCH[graph.tensor(name).dtype.name]) for name, value in given.items()}
    tensors["out"] = torch.full(graph.tensor("out").shape, float("nan"), dtype=TORCH[graph.tensor("out").dtype.name])
    executor.run(tensors)
    return tensors["out"]


def compute_exact(problem: MoE, given: dict[str, np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(problem.run_dense(np, {n: v.astype(np.float64) for n, v in given.items()})["out"])


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "routing", "dtype"),
    [
        (1, 5, 2, Routing.BALANCED, il.fp32),  # fewer pairs than experts
        (45, 5, 2, Routing.SKEWED, il.bf16),  # routed by one op
        (70, 9, 6, Routing.SKEWED, il.fp32),  # blocks of tokens not all whole, experts and schedule no powers of two
    ],
)
def test_any_routing_is_right(tokens: int, experts: int, chosen: int, routing: Routing, dtype: il.DType) -> None:
    problem = MoE(32, 48, experts, chosen, tokens, routing, dtype)
    given = dict(problem.make_inputs(1))
    out = run(il.SerialExecutor(il.build(problem.build_graph(il.CPU), il.Schedule(3)), il.RunOptions("cpu")), given)
    assert relative_error(out, compute_exact(problem, given)) < (1e-6 if dtype is il.fp32 else 4 * dtype.epsilon)


def test_all_tokens_may_go_to_one_expert_and_none_to_others() -> None:
    problem = MoE(32, 48, 4, 1, 40, dtype=il.fp32)
    given = dict(problem.make_inputs(0))
    given["logits"] = np.where(np.arange(4) == 2, 1.0, np.full((40, 1), -np.inf)).astype(np.float32)
    out = run(il.SerialExecutor(il.build(problem.build_graph(il.CPU), il.Schedule(3)), il.RunOptions("cpu")), given)
    assert relative_error(out, compute_exact(problem, given)) < 1e-6


@pytest.mark.parametrize("name", ["semaphore_streams-chunked", "static", "ticket"])
def test_every_executor_computes_the_same(name: str) -> None:
    problem = MoE(32, 48, 3, 2, 20, dtype=il.fp32)
    given = dict(problem.make_inputs(0))
    assert relative_error(run(executor(name, problem.build_graph(il.CPU)), given), compute_exact(problem, given)) < 1e-6


@pytest.mark.parametrize("op", ["assign", "route", "place", "fill", "gather", "up", "down", "merge"])
def test_nothing_beyond_what_is_declared_is_touched_whatever_tables_hold(op: str) -> None:
    tokens, rows = 40 if op == "assign" else 70, 64 if op == "gather" else 16
    graph = moe(tokens, 32, 48, 3, 2, il.fp32, tile=il.MatmulTile(rows, 32, 32))
    assert il.check_footprint(graph, op, device="cpu", tiles=(0,)).tiles == (0,)
    assert il.check_footprint(graph, op, device="reference", tiles=(0,)).tiles == (0,)


def test_logits_that_are_no_numbers_name_experts_that_there_are() -> None:
    logits = np.full((3, 5), np.nan, np.float32)
    made = {name: il.Tensor(name, shape, il.int32) for name, shape in (("experts", (3, 2)), ("counts", (1, 5)))}
    made["weights"] = il.Tensor("weights", (3, 2), il.fp32)
    given = il.Tensor("logits", (3, 5), il.fp32)
    op = route("route", given, made["experts"], made["weights"], made["counts"])
    graph = il.Graph("route", (given, *made.values()), (op,), ("logits",), tuple(made))
    tensors = {n: torch.zeros(t.shape, dtype=TORCH[t.dtype.name]) for n, t in made.items()}
    tensors["logits"] = torch.from_numpy(logits)
    il.SerialExecutor(il.build(graph, il.Schedule(1)), il.RunOptions("cpu")).run(tensors)
    assert ((tensors["experts"] >= 0) & (tensors["experts"] < 5)).all()
