"""Matmuls with RMS normalisation folded in, under the Triton interpreter."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.kernels.rms_norm import rms_norm

from ..cases import Case, ffn_answer, ffn_shape, relative_error
from ..folded_norm import build_folded, compute_exact


@pytest.mark.parametrize(("swap_ab", "gated"), [(False, True), (True, False), (True, True)])
def test_a_norm_between_two_products_is_right_in_both(swap_ab: bool, gated: bool) -> None:
    tiles = il.MatmulTile(16, 128, 64, swap_ab=swap_ab), il.MatmulTile(16, 32, 64, swap_ab=swap_ab)
    graph = build_folded(19, *tiles, gated=gated, dtype=il.fp32, kept=swap_ab)
    torch.manual_seed(0)
    t = {name: torch.randn(graph.tensor(name).shape) for name in graph.inputs}
    t |= {name: torch.full(graph.tensor(name).shape, float("nan")) for name in graph.outputs}
    il.PersistentExecutor(il.build(graph, il.Schedule(3, split={"second": il.SplitK(2)})), il.RunOptions("cpu")).run(t)
    right = compute_exact(t)
    for output in graph.outputs:
        assert relative_error(t[output], right[output]) < 1e-6


@pytest.mark.parametrize(("kind", "swap_ab"), [("gated", True), ("gated", False), ("relu", False)])
def test_a_product_that_normalises_its_rows_is_right_and_reads_what_it_declares(kind: str, swap_ab: bool) -> None:
    shape = ffn_shape(kind, 192, 64, norm=1e-2)
    tile = il.MatmulTile(16, 32, 128, swap_ab=swap_ab)
    case = Case(il.workloads.ffn(5, shape, il.fp32, tile, tile), ffn_answer(shape))
    given, out = case.inputs(), case.make_poisoned_output()
    plan = il.build(case.graph, il.Schedule(3, split={"up": il.SplitK(2)}))
    il.PersistentExecutor(plan, il.RunOptions("cpu")).run({**given, "out": out})
    assert relative_error(out, case.compute_exact(given)) < 1e-6
    assert il.check_footprint(case.graph, "up", device="cpu", tiles=(0,)).tiles == (0,)


def test_a_norm_of_its_own_is_right() -> None:
    x, weight, out = (il.Tensor(name, (*rows, 40), il.fp32) for name, rows in (("x", (3,)), ("w", ()), ("out", (3,))))
    graph = il.Graph("norm", (x, weight, out), (rms_norm("norm", x, weight, out, 1e-5),), ("x", "w"), ("out",))
    t = {"x": torch.randn(3, 40), "w": torch.randn(40), "out": torch.empty(3, 40)}
    il.SerialExecutor(il.build(graph, il.Schedule(3)), il.RunOptions("cpu")).run(t)
    assert relative_error(t["out"], torch.nn.functional.rms_norm(t["x"].double(), (40,), t["w"].double(), 1e-5)) < 1e-6
