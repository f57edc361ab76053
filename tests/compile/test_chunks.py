"""Steps that read chunks of prompts compile for sm_90 without a GPU: one launch, wgmma, memory order, few spills."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.kernels.lint import count_instructions, lint
from interlace.workloads import LLAMAS, build_decode_graph


@pytest.mark.parametrize(
    ("name", "batch", "chunk", "pages", "spilled"),
    [
        ("llama3.2-1b", 16, 128, None, 96),
        pytest.param("llama3.1-8b", 1, 16, 40, 96, marks=pytest.mark.thorough),
        pytest.param("qwen3-0.6b", 33, 512, 200, 96, marks=pytest.mark.thorough),
    ],
)
def test_a_step_with_a_chunk_is_one_launch_of_products_under_way(
    name: str, batch: int, chunk: int, pages: int | None, spilled: int
) -> None:
    model = replace(LLAMAS[name], layers=1, vocabulary=4096)
    graph = build_decode_graph(model, batch, 1088, il.H200, chunk=chunk, pages=pages)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    executor = il.MegakernelExecutor(plan, il.RunOptions("meta"))
    binary = executor.binary
    assert len(executor.build_launches()) == 1
    assert lint(binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert binary.warnings == ()  # serialised products would cause one
    assert binary.resources.spill_bytes <= spilled  # in a loader warp, once per item
    assert count_instructions(binary.ptx, "wgmma.mma_async") > 0


def test_a_step_of_wide_heads_that_samples_and_reads_a_chunk_fits_the_registers() -> None:
    """Two warpgroups have 168 registers a thread; a block of 64 keys of 128 elements left too few."""
    model = replace(LLAMAS["llama3.1-8b"], layers=1)
    graph = build_decode_graph(model, 16, 1216, il.H200, chunk=112, pages=304, has_sampling=True)
    executor = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    assert executor.binary.resources.spill_bytes < 1020, "more are refused"
