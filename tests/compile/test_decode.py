"""The ops of a decode step compile for sm_90 without a GPU, in registers and shared memory that keep an SM busy."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.kernels.lint import lint, run_ptxas
from interlace.kernels.rms_norm import rms_norm
from interlace.workloads import LLAMAS, RaggedAttention, build_decode_graph

from ..sampling import sampling_graph
from ..thorough import some
from .limits import assert_within
from .policies import count_hinted_loads


def test_a_step_is_one_launch_whose_layers_share_their_code() -> None:
    def text(layers: int, drawn: bool = False) -> str:
        model = replace(LLAMAS["llama3.2-1b"], layers=layers, vocabulary=4096)
        graph = build_decode_graph(model, 1, 1088, il.H200, has_sampling=drawn)
        options = il.RunOptions("meta", dependent_launch=True)
        return il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), options).composition.source

    alone = text(1)
    assert alone == text(3)
    assert alone != text(1, drawn=True)


@pytest.mark.parametrize("name", some(["llama3.2-1b", "qwen2.5-0.5b", "smollm2-135m"], "llama3.2-1b".__eq__))
def test_steps_of_one_sequence_by_words_spill_nothing_and_keep_the_memory_order(name: str) -> None:
    """All hand-offs of a layer use LL words, except for what is accumulated."""
    graph = build_decode_graph(replace(LLAMAS[name], layers=2, vocabulary=4096), 1, 1088, il.H200)
    options = il.RunOptions("meta", dependent_launch=True)
    made = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), options)
    shared = {"q_heads", "heads", "inner", *(f"{x}_{of}" for x in ("x_attended", "x") for of in ("scaled", "squares"))}
    assert made.lowered.ll_edges.sizes.keys() >= shared
    assert (made.binary.resources.spill_bytes, made.binary.resources.stack_bytes) == (0, 0)
    assert_within(made.binary.resources, 182)
    assert lint(made.binary.ptx, posts=True, waits=True, posting_warp=True, has_ll=True) == []


@pytest.mark.parametrize(("batch", "kind", "limits"), [(1, "Skinny", (33, 208)), (64, "Matmul", (46, 184))])
def test_logits_of_a_vocabulary_of_any_size_compile_for_sm_90(batch: int, kind: str, limits: tuple[int, int]) -> None:
    x, head, logits = (
        il.Tensor(name, shape, il.bf16)
        for name, shape in {"x": (batch, 2048), "head": (32001, 2048), "logits": (batch, 32001)}.items()
    )
    graph = il.Graph("head", (x, head, logits), (il.matmul("logits", x, head, logits),), ("x", "head"), ("logits",))
    made = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions("meta"))
    assert f"::{kind}_" in made.composition.source
    assert lint(made.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert (made.binary.resources.spill_bytes, made.binary.resources.stack_bytes) == (0, 0)
    assert_within(made.binary.resources, *limits)


def test_the_ops_that_draw_compile_for_sm_90() -> None:
    graph = sampling_graph(2, 151936, il.bf16)
    for launch in il.SerialExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).build_launches():
        used = run_ptxas(launch.compile_ahead().asm["ptx"])
        assert used.spill_bytes == 0
        assert used.registers <= 128


def test_ops_on_caches_in_pages_compile_for_sm_90() -> None:
    model = replace(LLAMAS["llama3.2-1b"], layers=1, vocabulary=4096)
    graph = build_decode_graph(model, 16, 1088, il.H200, pages=100)
    launches = il.SerialExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).build_launches()
    of_kernel = dict(zip((op.kernel for op in graph.ops), launches, strict=True))
    for name in ("attend", "append"):
        used = run_ptxas(of_kernel[name].compile_ahead().asm["ptx"])
        assert (used.spill_bytes, used.registers <= 128) == (0, True)


def test_attention_by_shares_compiles_for_sm_90() -> None:
    graph = RaggedAttention.from_fields({}, gpu=True).build_graph(il.H200)
    for launch in il.SerialExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).build_launches():
        used = run_ptxas(launch.compile_ahead().asm["ptx"])
        assert (used.spill_bytes, used.registers <= 168) == (0, True)
    options = il.RunOptions("meta", dependent_launch=True)
    binary = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), options).binary
    assert lint(binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert (binary.resources.spill_bytes, binary.resources.stack_bytes) == (0, 0)
    assert_within(binary.resources, 78, 176)
    # Both panels of keys and of values; angles and this step's q, k and v.
    assert count_hinted_loads(binary.ptx) == (2, 4)


def test_the_ops_of_a_step_compile_for_sm_90() -> None:
    graph = build_decode_graph(replace(LLAMAS["qwen3-0.6b"], layers=1, vocabulary=4096), 4, 1088, il.H200)
    launches = il.SerialExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta")).build_launches()
    of_kernel = dict(zip((op.kernel for op in graph.ops), launches, strict=True))
    del of_kernel["matmul"]  # test_kernels compiles those; a norm is in these
    matmuls = dict(zip((op.name for op in graph.ops), launches, strict=True))
    folded = {name: matmuls[f"layers.0.{name}"] for name in ("x_attended", "inner")}
    x, weight, out = (il.Tensor(name, (*b, 1024), il.bf16) for name, b in (("x", (4,)), ("w", ()), ("out", (4,))))
    alone = il.Graph("norm", (x, weight, out), (rms_norm("norm", x, weight, out, 1e-6),), ("x", "w"), ("out",))
    (of_kernel["rms_norm"],) = il.SerialExecutor(
        il.build(alone, il.Schedule(132)), il.RunOptions("meta")
    ).build_launches()
    assert len(of_kernel) == 7
    for name, launch in (of_kernel | folded).items():
        compiled = launch.compile_ahead()
        used = run_ptxas(compiled.asm["ptx"])
        assert used.spill_bytes <= 48
        assert used.registers <= (255 if name in folded else 128)
        assert compiled.metadata.shared <= il.H200.smem_bytes // (1 if name in folded else 2)
