"""Attention with its output product compiles for sm_90 without a GPU: wgmma, registers and shared memory that fit."""

from __future__ import annotations

import interlace as il
from interlace.kernels.causal_attention import AttentionTile
from interlace.kernels.lint import count_instructions, lint, run_ptxas
from interlace.workloads.prefill import prefill_attention

from .limits import assert_within


def launches(executor: type[il.Executor], head_dim: int) -> list:
    tile = AttentionTile.heuristic(head_dim, 2, il.H200)
    graph = prefill_attention(
        1000, 2048, 16, 4, head_dim, longest=500, tile=tile, product=il.MatmulTile(128, 128, 64, 4, 8)
    )
    return executor(il.build(graph, il.Schedule(132, policy=il.RowSync())), il.RunOptions("meta")).build_launches()


def test_attention_multiplies_with_wgmma_and_keeps_its_sums_in_registers() -> None:
    compiled = launches(il.SerialExecutor, 128)[0].compile_ahead()
    used = run_ptxas(compiled.asm["ptx"])
    assert count_instructions(compiled.asm["ptx"], "wgmma.mma_async") > 0
    assert count_instructions(compiled.asm["ptx"], "mma.sync") == 0
    assert (used.spill_bytes, used.is_serialised) == (0, False)
    assert compiled.metadata.shared <= il.H200.smem_bytes


def test_one_launch_of_attention_and_its_product_keeps_memory_order() -> None:
    (launch,) = launches(il.PersistentExecutor, 128)
    compiled = launch.compile_ahead()
    assert lint(compiled.asm["ptx"], posts=True, waits=True) == []
    assert run_ptxas(compiled.asm["ptx"]).spill_bytes == 0
    assert compiled.metadata.shared <= il.H200.smem_bytes


def test_the_one_launch_keeps_products_under_way_and_memory_order() -> None:
    graph = prefill_attention(1000, 2048, 16, 4, 64)
    binary = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta")).binary
    assert lint(binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert binary.warnings == ()  # serialised products would cause one
    assert binary.resources.spill_bytes <= 48  # in a loader warp, once per item
    assert_within(binary.resources, 77)
