"""Convolutions compile for sm_90a without a GPU: wgmma, registers that fit, memory order."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import count_instructions, lint, run_ptxas
from interlace.workloads import ConvPair, ResNetBlock, Workload

from .limits import assert_within

#: Workload, preset and images: in parts along channels; pixels as the 64-row operand of two warpgroups; a residual.
CASES = [
    (ConvPair, "resnet-512", 1),
    pytest.param(ConvPair, "resnet-64", 8, marks=pytest.mark.thorough),
    pytest.param(ResNetBlock, "resnet-256", 32, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("kind", "preset", "images"), CASES)
def test_pair_keeps_its_registers_and_memory_order(kind: type[Workload], preset: str, images: int) -> None:
    graph = kind.from_fields({"images": images}, True, preset).build_graph(il.H200)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert_within(run.binary.resources, 110)
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert count_instructions(run.binary.ptx, "wgmma.mma_async") > 0
    assert count_instructions(run.binary.ptx, "cp.async.bulk.tensor.4d") > 0
    assert run.composition.stages >= 4


def test_triton_body_multiplies_with_wgmma_and_keeps_its_registers() -> None:
    graph = ConvPair.from_fields({"images": 4}, True, "resnet-64").build_graph(il.H200)
    first, *_ = il.SerialExecutor(
        il.autoplan(graph, il.H200, il.SerialExecutor), il.RunOptions("meta")
    ).build_launches()
    ptx = first.compile_ahead().asm["ptx"]
    used = run_ptxas(ptx)
    assert count_instructions(ptx, "wgmma.mma_async") > 0
    assert (used.spill_bytes, used.is_serialised) == (0, False)
