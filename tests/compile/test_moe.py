"""Matmuls of experts compile for sm_90 without a GPU: wgmma, registers and shared memory that fit, memory order."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import count_instructions, lint, run_ptxas
from interlace.workloads import MoE

from ..thorough import some
from .limits import assert_within


def launches(executor: type[il.Executor], tokens: int, preset: str = "mixtral-8x7b") -> list:
    graph = MoE.from_fields({"tokens": tokens}, True, preset).build_graph(il.H200)
    return executor(il.build(graph, il.Schedule(132, policy=il.RowSync())), il.RunOptions("meta")).build_launches()


def test_experts_of_many_tokens_multiply_with_wgmma_and_keep_their_sums_in_registers() -> None:
    (up,) = (launch for launch in launches(il.SerialExecutor, 4096) if launch.ops == ("up",))
    up = up.compile_ahead()
    used = run_ptxas(up.asm["ptx"])
    assert count_instructions(up.asm["ptx"], "wgmma.mma_async") > 0
    assert count_instructions(up.asm["ptx"], "mma.sync") == 0
    assert (used.spill_bytes, used.is_serialised) == (0, False)
    assert up.metadata.shared <= il.H200.smem_bytes


def test_experts_that_wait_for_their_tokens_and_post_keep_memory_order() -> None:
    (up,) = (launch for launch in launches(il.SemaphoreStreamsExecutor, 16) if launch.ops == ("up",))
    compiled = up.compile_ahead()
    assert lint(compiled.asm["ptx"], posts=True, waits=True) == []
    assert run_ptxas(compiled.asm["ptx"]).spill_bytes == 0
    assert compiled.metadata.shared <= il.H200.smem_bytes


@pytest.mark.parametrize("tokens", some([64, 4096], lambda tokens: tokens == 64))
def test_one_launch_of_routing_and_experts_keeps_the_memory_order_and_its_registers(tokens: int) -> None:
    graph = MoE.from_fields({"tokens": tokens}, True, "mixtral-8x7b").build_graph(il.H200)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    assert run.binary.resources.spill_bytes == 0
    assert_within(run.binary.resources, {64: 131, 4096: 174}[tokens])
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert run.composition.stages >= 4
