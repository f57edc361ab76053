"""Block-sparse products compile for sm_90 without a GPU: wgmma, registers and shared memory that fit, memory order."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import count_instructions, lint, run_ptxas
from interlace.workloads import BlockSparse

from ..block_sparse import build_product
from ..thorough import some
from .limits import assert_within

#: Code in KiB of each launch, by rows of x.
CODE_KIB = {16: 40, 256: 40, 4096: 43}


def compile_launch(graph: il.Graph, *, posts: bool) -> il.MegakernelExecutor:
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    run = il.MegakernelExecutor(plan, il.RunOptions("meta", dependent_launch=True))
    assert run.binary.resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=posts, waits=posts, posting_warp=True) == []
    assert count_instructions(run.binary.ptx, "wgmma.mma_async") > 0
    return run


@pytest.mark.parametrize("m", some([16, 256, 4096], lambda m: m == 4096))
def test_a_product_keeps_the_memory_order_and_its_registers(m: int) -> None:
    run = compile_launch(BlockSparse.from_fields({"m": m}, True).build_graph(il.H200), posts=False)
    assert_within(run.binary.resources, CODE_KIB[m])
    assert run.composition.stages >= 4


def test_a_product_whose_table_the_launch_writes_keeps_the_memory_order() -> None:
    compile_launch(build_product(64, 256, 256, 7, (64, 64), writes_table=True), posts=True)


def test_the_triton_body_multiplies_with_wgmma_and_keeps_its_sums_in_registers() -> None:
    graph = BlockSparse.from_fields({"m": 4096}, True).build_graph(il.H200)
    (launch,) = il.SerialExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).build_launches()
    compiled = launch.compile_ahead()
    used = run_ptxas(compiled.asm["ptx"])
    assert count_instructions(compiled.asm["ptx"], "wgmma.mma_async") > 0
    assert (used.spill_bytes, used.is_serialised) == (0, False)
    assert compiled.metadata.shared <= il.H200.smem_bytes
