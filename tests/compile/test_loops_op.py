"""Ops made of loops compile ahead of time, and keep the memory order of semaphores."""

from __future__ import annotations

import re

import pytest

import interlace as il
from interlace.core.errors import GraphError
from interlace.executors.launch import CudaSourceLaunch
from interlace.kernels.lint import lint
from interlace.loops.cuda.compiled import compile_kernel
from interlace.loops.frontend.library import build_examples

from ..loops_graphs import matmuls, norm_chain_sum
from ..thorough import some

META = il.RunOptions(device="meta")


#: Bulk and plain copies, a reduction, and products with and without warp specialisation.
OFTEN = "copy_2d", "pointwise_mixed_specialised", "layer_norm", "matmul", "matmul_batched_specialised"


@pytest.mark.parametrize("name", some(build_examples(), OFTEN.__contains__))
def test_items_of_every_golden_kernel_keep_the_memory_order(name: str) -> None:
    example = build_examples()[name]
    compiled = compile_kernel(example.kernel, warp_specialised=example.warp_specialised, items=True)
    assert (compiled.binary.resources.spill_bytes, compiled.binary.warnings) == (0, ())
    ptx = compiled.binary.ptx
    assert lint(ptx, posts=True, waits=True) == []
    assert len(re.findall(r"\bred\.release\.gpu", ptx)) == 1
    assert "ld.acquire.gpu" in ptx
    assert "ld.global.nc" not in ptx  # other blocks may write the inputs while the kernel runs


def test_the_lint_sees_a_forgotten_fence_and_an_early_post() -> None:
    compiled = compile_kernel(build_examples()["copy_2d"].kernel, items=True)
    ptx = compiled.binary.ptx
    for broken, rule in (
        (ptx.replace("fence.proxy.async.global;", ""), "tma-load"),
        (re.sub(r"cp\.async\.bulk\.wait_group \s*0;", "", ptx), "tma-store"),
    ):
        assert {finding.rule for finding in lint(broken, posts=True, waits=True)} == {rule}


@pytest.mark.parametrize("graph", [norm_chain_sum, matmuls])
def test_executors_compile_ops_of_loops_beside_triton_ones(graph: object) -> None:
    built, _ = graph(300)  # type: ignore[operator]
    plan = il.build(built, il.Schedule(132))
    for cls in (il.SerialExecutor, il.CudaGraphExecutor, il.SemaphoreStreamsExecutor):
        launches = cls(plan, META).build_launches()
        texts = [launch.compile() for launch in launches if isinstance(launch, CudaSourceLaunch)]
        expected = [op.kernel for op in built.ops if op.kernel not in ("matmul", "copy")]
        assert [text.binary.name for text in texts] == [name.partition("-")[0] for name in expected]


def test_executors_of_one_launch_refuse_them() -> None:
    plan = il.build(norm_chain_sum(300)[0], il.Schedule(132))
    with pytest.raises(GraphError, match=r"op 'norm'.*run it with serial, cuda_graph, pdl or semaphore_streams"):
        il.PersistentExecutor(plan, META).build_launches()
