"""Ops that go through rows, under the Triton interpreter: right, and within what they declare."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.workloads import Attention, FFNBlock, NormedMatmuls, Workload

from ..cases import relative_error
from ..rows import CASES
from .cases import executor


@pytest.mark.parametrize("name", CASES)
def test_rows_are_right_under_triton(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    out = torch.full(inputs["x"].shape, float("nan"), dtype=inputs["x"].dtype)
    executor("ticket", case.graph).run({**inputs, "out": out})
    assert relative_error(out, case.exact(inputs)) < case.tolerance


@pytest.mark.parametrize("name", [name for name in CASES if "warp" in name or "plus" in name])
def test_rows_touch_what_they_declare(name: str) -> None:
    graph = CASES[name].graph
    for device in ("reference", "cpu"):
        il.check_footprint(graph, graph.ops[0].name, device=device, tiles=(graph.ops[0].tiles - 1,))


@pytest.mark.parametrize("kind", [FFNBlock, NormedMatmuls, Attention], ids=lambda kind: kind.name)
def test_problems_with_ops_of_rows_are_right_under_triton(kind: type[Workload]) -> None:
    problem = kind.of({"m": 21, "dtype": il.fp32}, gpu=False)
    graph = problem.graph(il.CPU)
    given = {name: torch.from_numpy(value) for name, value in problem.inputs(0).items()}
    right = problem.dense(torch, {name: value.double() for name, value in given.items()})["out"]
    out = torch.full(right.shape, float("nan"))
    executor("ticket-split", graph).run({**given, "out": out})
    assert relative_error(out, right) < 1e-6
