"""Whole networks for images compile for sm_90a without a GPU as one launch: registers that fit, memory order."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import count_instructions, lint

from ..networks import build_network_graph
from .limits import assert_within


@pytest.mark.parametrize(
    ("name", "images", "code_kib"),
    [
        ("resnet18", 1, 200),
        pytest.param("resnet18", 8, 240, marks=pytest.mark.thorough),
        pytest.param("resnet50", 1, 300, marks=pytest.mark.thorough),
        pytest.param("vgg19", 1, 235, marks=pytest.mark.thorough),
    ],
)
def test_network_keeps_its_registers_and_memory_order(name: str, images: int, code_kib: float) -> None:
    graph = build_network_graph(name, images)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert_within(run.binary.resources, code_kib)
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert count_instructions(run.binary.ptx, "wgmma.mma_async") > 0
    assert run.composition.stages >= 4
