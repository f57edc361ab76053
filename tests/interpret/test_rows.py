"""Ops that go through rows, under the Triton interpreter: right, and within what they declare."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.kernels.layer_norm import centre_outputs, fold_shift
from interlace.workloads import Attention, FFNBlock, NormedMatmuls, Workload

from ..cases import relative_error
from ..folded_norm import EPS, build_folded
from ..rows import CASES
from .cases import executor


@pytest.mark.parametrize("name", CASES)
def test_rows_are_right_under_triton(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    out = torch.full(inputs["x"].shape, float("nan"), dtype=inputs["x"].dtype)
    executor("ticket", case.graph).run({**inputs, "out": out})
    assert relative_error(out, case.compute_exact(inputs)) < case.tolerance


@pytest.mark.parametrize("name", [name for name in CASES if "warp" in name or "plus" in name])
def test_rows_touch_what_they_declare(name: str) -> None:
    graph = CASES[name].graph
    for device in ("reference", "cpu"):
        il.check_footprint(graph, graph.ops[0].name, device=device, tiles=(graph.ops[0].tiles - 1,))


@pytest.mark.parametrize("kind", [FFNBlock, NormedMatmuls, Attention], ids=lambda kind: kind.name)
def test_problems_with_ops_of_rows_are_right_under_triton(kind: type[Workload]) -> None:
    problem = kind.from_fields({"m": 21, "dtype": il.fp32}, gpu=False)
    graph = problem.build_graph(il.CPU)
    given = {name: torch.from_numpy(value) for name, value in problem.make_inputs(0).items()}
    right = problem.run_dense(torch, {name: value.double() for name, value in given.items()})["out"]
    out = torch.full(right.shape, float("nan"))
    executor("ticket-split", graph).run({**given, "out": out})
    assert relative_error(out, right) < 1e-6


def test_layer_norm_of_centred_weights_folds_into_the_products_around_it() -> None:
    """No worse than 1.5 times PyTorch's three ops in fp16, on weights whose means are as large as what they vary by."""
    graph = build_folded(21, il.MatmulTile(16, 128, 64), il.MatmulTile(16, 32, 64), dtype=il.fp16)
    torch.manual_seed(0)
    t = {name: torch.randn(graph.tensor(name).shape) for name in graph.inputs}
    t["w_first"], t["w_second"] = t["w_first"] / 8 + torch.randn(64) / 8, t["w_second"] / 12
    t, shift = {name: value.half() for name, value in t.items()}, torch.randn(136).half()

    def run_unfused(t: dict[str, torch.Tensor], shift: torch.Tensor) -> torch.Tensor:
        middle = t["x"] @ t["w_first"].T + t["residual"]
        normed = torch.nn.functional.layer_norm(middle, (136,), t["scale"], shift, EPS)
        return normed @ t["w_second"].T + t["bias"]

    once = {name: value.float() for name, value in t.items()}
    once["w_first"], once["residual"] = centre_outputs(once["w_first"]), centre_outputs(once["residual"].T).T
    once["bias"] = fold_shift(once["w_second"], shift.float(), once["bias"])
    given = {name: value.half() for name, value in once.items()}
    given |= {name: torch.full(graph.tensor(name).shape, float("nan"), dtype=torch.half) for name in graph.outputs}
    given["squares"] = torch.full(graph.tensor("squares").shape, float("nan"))
    executor("ticket", graph).run(given)
    right = run_unfused({name: value.double() for name, value in t.items()}, shift.double())
    assert relative_error(given["out"], right) <= 1.5 * relative_error(run_unfused(t, shift), right)
