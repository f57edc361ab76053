"""Row ops compile for sm_90 without a GPU: memory order and registers."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import lint, run_ptxas
from interlace.workloads import Attention, FFNBlock, NormedMatmuls, Workload

from ..rows import build_layer_norm, build_softmax, pointwise, together
from .test_megakernel import FIX_UP_SPILLS

#: Row lengths of models: the hidden size of GPT-2 XL, and its vocabulary.
WIDE = {
    "norm": build_layer_norm(16, 1600),
    "norms": build_layer_norm(1000, 12288, rows=8),
    "softmax": build_softmax(16, 50257),
    "pointwise": pointwise(512, 6400, activation=il.Activation.SILU, times="matrix", tile=(8, 1024)),
}


def test_one_launch_of_rows_of_models_keeps_the_memory_order() -> None:
    graph = together(WIDE.items())
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta"))
    assert run.binary.resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=False, waits=False, posting_warp=True) == []


@pytest.mark.parametrize("name", WIDE)
def test_rows_of_models_stay_in_registers_under_triton(name: str) -> None:
    (launch,) = il.SerialExecutor(il.build(WIDE[name].graph, il.Schedule(132)), il.RunOptions("meta")).build_launches()
    assert run_ptxas(launch.compile_ahead().asm["ptx"]).spill_bytes == 0


BETWEEN = {FFNBlock: 1, NormedMatmuls: 16, Attention: 4096}


@pytest.mark.parametrize(("kind", "m"), [*BETWEEN.items(), pytest.param(FFNBlock, 1024, marks=pytest.mark.thorough)])
def test_rows_between_products_keep_the_memory_order_and_their_registers(kind: type[Workload], m: int) -> None:
    graph = kind.from_fields({"m": m}, True).build_graph(il.H200)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    split = run._table.parts.max() > 1
    assert run.binary.resources.spill_bytes <= (FIX_UP_SPILLS if split else 0)
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert run.composition.stages >= 4
