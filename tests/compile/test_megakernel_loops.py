"""Ops of loops in the megakernel compile within limits and keep the memory order; others are rejected."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import triton
import triton.language as tl

import interlace as il
from interlace import loops
from interlace.core.errors import PlanError
from interlace.kernels.lint import lint
from interlace.loops.ops.megakernel_loops import MegakernelLoops
from interlace.megakernel.constants import KEEPS

from ..loops_graphs import mark_rings
from ..megakernel_loops import chain, gelu_of_rows, library, side_by_side, twice

TILE = il.MatmulTile(128, 64, 64, num_warps=8)


def launch(graph: il.Graph) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(il.build(graph, il.Schedule(132)), il.RunOptions("meta"))


def test_loops_products_and_texts_in_one_launch_keep_the_memory_order() -> None:
    run = il.MegakernelExecutor(
        il.build(chain(300, TILE), il.Schedule(132)), il.RunOptions("meta", dependent_launch=True)
    )
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    assert sorted(set((run._table.items["code"] % KEEPS).tolist())) == [0, 1, 2, 3]
    products = re.findall(r"wgmma\.mma_async\S*m64n(\d+)k16", run.binary.ptx)
    assert set(products) == {"64"}


@triton.jit
def softmax_rows(x, y, N, BLOCK: tl.constexpr):
    at, column = tl.program_id(0) * N + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=column < N, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + at, value / tl.sum(value, 0), mask=column < N)


def test_a_converted_triton_function_compiles_next_to_a_matmul() -> None:
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in {"x": (64, 200), "w": (200, 200)}.items()}
    t |= {name: il.Tensor(name, (64, 200), il.bf16) for name in ("h", "y")}
    of_op = {"x": t["h"], "y": t["y"]}
    rows = loops.convert_triton(softmax_rows, (64,), of_op, {"N": 200, "BLOCK": 256}, threads=256)
    ops = il.matmul("product", t["x"], t["w"], t["h"], tile=TILE), loops.as_op("softmax", rows, of_op)
    run = launch(il.Graph("softmax of a product", tuple(t.values()), ops, ("x", "w"), ("y",)))
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []


def test_kernels_of_the_library_compile_in_one_launch() -> None:
    run = launch(library())
    assert (run.binary.resources.spill_bytes, run.binary.warnings) == (0, ())
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []


def test_an_input_that_an_op_before_writes_is_not_loaded_ahead_whatever_a_body_says(monkeypatch) -> None:
    make = MegakernelLoops.build_megakernel_body
    plan = il.build(twice(16), il.Schedule(132))
    monkeypatch.setattr(
        MegakernelLoops,
        "build_megakernel_body",
        lambda self, op, tensors, settled: make(self, op, tensors, frozenset("xz")),
    )
    with pytest.raises(PlanError, match="op 'second' loads x 'h' ahead of every wait, but op 'first' writes it"):
        il.MegakernelExecutor(plan, il.RunOptions("meta"))


def test_weights_that_an_op_writes_are_refused() -> None:
    graph = twice(16)
    tensors = {"x": graph.tensor("h"), "z": graph.tensor("z"), "y": graph.tensor("out")}
    second = loops.as_op("second", gelu_of_rows(), tensors, weights=("x",))
    with pytest.raises(PlanError, match="op 'second' loads x 'h' ahead of every wait, but op 'first' writes it"):
        launch(replace(graph, ops=(graph.ops[0], second)))


@pytest.mark.parametrize("tile", [il.MatmulTile(8, 16, 64, swap_ab=True), il.MatmulTile(64, 64, 64)])
def test_a_bias_that_an_op_writes_is_refused(tile: il.MatmulTile) -> None:
    """Tiles load it while they wait for tokens, or through a path that does not see stores of the same launch."""
    shapes = {"given": (64,), "bias": (64,), "x": (8, 64), "w": (64, 64), "y": (8, 64)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    text = il.CudaBody("DEVICE void any(const Tile& tile, const Arguments& a) {}", "any")
    given, bias = ((t[name], (il.ALL,)) for name in ("given", "bias"))
    ops = (
        il.Kernel("any", megakernel=text).make_op("any", (1,), {"x": given}, {"y": bias}),
        il.matmul("product", t["x"], t["w"], t["y"], bias=t["bias"], tile=tile),
    )
    graph = il.Graph("written", (*t.values(),), ops, ("given", "x", "w"), ("y",))
    with pytest.raises(PlanError, match="op 'product' loads bias 'bias' ahead of every wait, but op 'any' writes it"):
        il.MegakernelExecutor.check(graph, il.H200)


def test_stages_that_shared_memory_does_not_hold_twice_are_refused_before_a_launch() -> None:
    kernel = mark_rings(loops.library.copy_2d(tile=(128, 256), walk=1), s=1)
    graph = side_by_side({"copy": (kernel, {"x": (128, 256), "y": (128, 256)})})
    told = r"a stage takes 131072 bytes.*do not hold two of them; op 'copy' takes 262144 bytes for the slots of two"
    with pytest.raises(PlanError, match=told):
        launch(graph)
    with pytest.raises(PlanError, match="hold 1 stages of these tiles"):
        il.MegakernelExecutor.check_tiles(graph, il.H200)
