"""Kernels of loops as ops: grids, regions and costs found in the loops, proofs, runs on NumPy, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.dtypes import bf16, fp32
from interlace.core.errors import DTypeError, IntraOpRaceError, PipelineError, SharedMemoryError, ThresholdError
from interlace.executors.footprint import check_footprint
from interlace.graph.access import ALL, axes, constant_span
from interlace.loops import library
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import ceil_div, maximum, minimum
from interlace.loops.ir.statements import Copy, LoopKernel
from interlace.loops.meaning.interpret import interpret
from interlace.loops.ops.flops import count_block_flops
from interlace.loops.ops.op import as_op
from interlace.loops.ops.regions import find_touched_spans
from interlace.loops.rules.limits import check_range

from ..loops_graphs import mark_rings, norm_chain_sum

I, J = axes(2)


def tensor(name: str, *shape: int, dtype: il.DType = fp32) -> il.Tensor:
    return il.Tensor(name, shape, dtype)


def chain(m: int) -> il.Graph:
    return norm_chain_sum(m, columns=48 * 4)[0]


def test_regions_follow_from_the_loops() -> None:
    spans = find_touched_spans(library.copy_2d(tile=(16, 256), walk=4), {"m": 100, "n": 3000})
    assert spans == dict.fromkeys("xy", (I.block(16), J.block(1024)))
    spans = find_touched_spans(library.matmul_bias(m=128, n=64), {"rows": 500, "columns": 500, "depth": 200})
    assert spans["a"] == (I.block(128), constant_span(0, 256))  # four steps of 64; the tensor clips
    assert spans["b"] == (J.block(64), constant_span(0, 256))
    assert spans["bias"] == (J.block(64),)
    assert spans["c"] == (I.block(128), J.block(64))
    (i,) = axes(1)
    assert find_touched_spans(library.reduce_outer(tile=(16, 128)), {"m": 40, "n": 1000})["x"] == (
        constant_span(0, 48),
        i.block(128),
    )


def one_block_loop(origin: object, extent: int = 6) -> LoopKernel:
    """A copy of 4 elements at ``origin(b, n)``."""
    k = Builder("one")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    s = k.register("s", (4,), fp32)
    with k.block("b", extent) as b, k.serial("i", minimum(2, n - b)) as i:
        k.load(s, x.at(origin(b, i, n)), Copy.PLAIN)  # type: ignore[operator]
        k.store(y.at(b * 4), s)
    return k.build_kernel()


@pytest.mark.parametrize(
    ("origin", "lo", "hi"),
    [
        (lambda b, i, n: b * 8 + i * 4, lambda b: 8 * b, lambda b: 8 * b + 8),
        (lambda b, i, n: b * 8 // 4 - i, lambda b: 2 * b - 1, lambda b: 2 * b + 4),
        (lambda b, i, n: maximum(b, 2) * 4, lambda b: 8, lambda b: 24),  # not affine: what all blocks touch
        (lambda b, i, n: b % 3 * 4, lambda b: 0, lambda b: 12),
        (lambda b, i, n: b // 2 * 4, lambda b: 0, lambda b: 12),
        (lambda b, i, n: b * (i + 1), lambda b: 0, lambda b: 14),
        (lambda b, i, n: n - b, lambda b: 50 - b, lambda b: 54 - b),
        (lambda b, i, n: minimum(b * 4, n), lambda b: 0, lambda b: 4 * b + 4),
    ],
)
def test_bounds_are_affine_where_indices_are_and_never_too_narrow(origin: object, lo: object, hi: object) -> None:
    (span,) = find_touched_spans(one_block_loop(origin), {"n": 50})["x"]
    for b in range(6):
        one = np.array([[b]]), np.array([0]), np.array([1])
        found = int(span.lo.evaluate(*one)[0]), int(span.hi.evaluate(*one)[0])
        assert found == (lo(b), hi(b))  # type: ignore[operator]


def test_an_op_has_the_grid_the_regions_and_the_cost_of_its_loops() -> None:
    x, w, y = tensor("x", 1000, 4096), tensor("w", 4096), tensor("y", 1000, 4096)
    bias = tensor("bias", 4096)
    op = as_op("norm", mark_rings(library.layer_norm(walk=8), row=2), {"x": x, "y": y, "weight": w, "bias": bias})
    (i,) = axes(1)
    assert (op.grid, op.params) == ((125,), (("m", 1000), ("warp-specialised", False)))
    assert op.kernel.startswith("layer_norm-")
    assert {a.arg: a.spans for a in op.reads} == {"x": (i.block(8), ALL), "weight": (ALL,), "bias": (ALL,)}
    assert {a.arg: a.spans for a in op.writes} == {"y": (i.block(8), ALL)}
    assert op.flops == 8 * 4096 * (1 + 4 + 7) + 8
    sizes = {"rows": 256, "columns": 256, "depth": 640}
    assert count_block_flops(library.matmul(), sizes) == 2 * 128 * 128 * 640


def test_a_graph_of_loops_runs_on_numpy_in_any_order() -> None:
    graph = chain(37)
    plan = il.build(graph, il.Schedule(5, policy=il.TileSync(), order=il.Serpentine()))
    assert il.verify(plan).edges == il.Dependencies(graph).count_edges() > 0
    rng = np.random.default_rng(3)
    inputs = {name: rng.standard_normal(graph.tensor(name).shape).astype(np.float32) for name in graph.inputs}
    x = inputs["x"].astype(float)
    rows = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * inputs["weight"] + inputs["bias"]
    expected = np.maximum(rows * inputs["scale"] + 1, 0).sum(1)
    for seed in range(3):
        out = il.ReferenceExecutor(plan, seed=seed).run(inputs)["out"]
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    for op in graph.ops:
        check_footprint(graph, op.name)


def test_one_block_of_the_reference_is_what_the_whole_kernel_computes() -> None:
    x = np.random.default_rng(0).standard_normal((21, 100)).astype(np.float32)
    loops = mark_rings(library.copy_2d(tile=(8, 16), walk=2), s=2)
    a, b = tensor("a", 21, 100), tensor("b", 21, 100)
    graph = il.Graph("copy", (a, b), (as_op("copy", loops, {"x": a, "y": b}),), ("a",), ("b",))
    out = il.ReferenceExecutor(il.build(graph, il.Schedule(3))).run({"a": x})["b"]
    np.testing.assert_array_equal(out, interpret(loops, {"x": x})["y"])


def test_a_plan_of_loops_is_proved_and_read_back() -> None:
    graph = chain(37)
    plan = il.build(graph, il.Schedule(4, policy=il.RowSync()))
    again = il.read_plan(plan.to_json(), [op.body for op in graph.ops])
    assert again == plan
    with pytest.raises(ThresholdError):
        il.verify(replace(plan, waits=replace(plan.waits, threshold=plan.waits.threshold + 1)))


def test_kernels_that_differ_are_told_apart_when_a_plan_is_read() -> None:
    a, b, c = (tensor(name, 64, 64) for name in "abc")
    first = as_op("first", mark_rings(library.copy_2d(tile=(16, 32)), s=2), {"x": a, "y": b})
    second = as_op("second", mark_rings(library.copy_2d(tile=(8, 64)), s=2), {"x": b, "y": c})
    assert first.kernel != second.kernel
    plan = il.build(il.Graph("two", (a, b, c), (first, second), ("a",), ("c",)), il.Schedule(3))
    again = il.read_plan(plan.to_json(), [first.body, second.body])
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_array_equal(il.ReferenceExecutor(again).run({"a": x})["c"], x)


def test_a_kernel_without_block_loops_is_one_tile() -> None:
    k = Builder("small")
    x, y = k.input("x", (64,), fp32), k.output("y", (64,), fp32)
    s = k.shared("s", (16,), fp32)
    with k.serial("i", 4) as i:
        k.load(s, x.at(i * 16))
        k.assign(y.at(i * 16), s * 2)
    a, b = tensor("a", 64), tensor("b", 64)
    op = as_op("small", mark_rings(k.build_kernel(), s=2), {"x": a, "y": b})
    assert op.grid == (1,)
    out = il.ReferenceExecutor(il.build(il.Graph("g", (a, b), (op,), ("a",), ("b",)), il.Schedule(1))).run(
        {"a": np.arange(64.0)}
    )
    np.testing.assert_array_equal(out["b"], np.arange(64.0) * 2)


def test_what_does_not_fit_is_refused_with_its_name() -> None:
    copy = mark_rings(library.copy_2d(), s=2)
    a, b = tensor("a", 64, 64), tensor("b", 64, 64)
    with pytest.raises(PipelineError, match="op 'c': kernel 'copy_2d' takes a tensor 'y'; pass one"):
        as_op("c", copy, {"x": a})
    with pytest.raises(DTypeError, match=r"a\[64 x 64\] bf16 is given for 'x', which is fp32"):
        as_op("c", copy, {"x": tensor("a", 64, 64, dtype=bf16), "y": b})
    with pytest.raises(PipelineError, match=r"b\[64 x 32\] fp32 can be seen as 'y'.*\{'m': 64, 'n': 64\}, in no way"):
        as_op("c", copy, {"x": a, "y": tensor("b", 64, 32)})
    with pytest.raises(PipelineError, match="stride of dimension 0 is 264 bytes"):
        as_op("c", copy, {"x": tensor("a", 64, 66), "y": tensor("b", 64, 66)})
    flat = tensor("a", 64 * 64)
    with pytest.raises(PipelineError, match="no box of a"):
        as_op("c", copy, {"x": flat, "y": b}, sizes={"m": 64, "n": 64})


def test_what_could_be_seen_in_two_ways_is_asked_for() -> None:
    k = Builder("cube")
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, 4, n), fp32), k.output("y", (m, 4, n), fp32)
    s = k.shared("s", (1, 4, 4), fp32)
    with k.block("b", m) as b, k.serial("i", ceil_div(n, 4)) as i:
        k.load(s, x.at(b, 0, i * 4))
        k.assign(y.at(b, 0, i * 4), s)
    loops, a, c = mark_rings(k.build_kernel(), s=2), tensor("a", 8, 16), tensor("c", 8, 16)
    with pytest.raises(PipelineError, match="in 2 ways; pass extents in sizes="):
        as_op("p", loops, {"x": a, "y": c})
    op = as_op("p", loops, {"x": a, "y": c}, sizes={"m": 8})
    assert dict(op.params)["n"] == 4
    cube = tensor("cube", 2, 4, 16)  # one tensor settles it for the other
    assert as_op("p", loops, {"x": a, "y": cube}).grid == (2,)


def test_what_would_fail_at_the_first_run_is_refused_at_once() -> None:
    a, b = tensor("a", 512, 512), tensor("b", 512, 512)
    with pytest.raises(SharedMemoryError, match="3 stages would fit"):
        as_op("c", mark_rings(library.copy_2d(tile=(64, 256)), s=8), {"x": a, "y": b})
    shapes = {"a": (128, 64), "b": (128, 64), "c": (128, 128)}
    tensors, loops = {n: tensor(n, *shape, dtype=bf16) for n, shape in shapes.items()}, library.matmul(k=32)
    with pytest.raises(PipelineError, match="64 elements along k"):
        as_op("m", loops, tensors)
    k = Builder("idle")
    n = k.symbol("n")
    x, y, _ = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.input("spare", (n,), fp32)
    s = k.shared("s", (16,), fp32)
    with k.block("b", ceil_div(n, 16)) as block, k.serial("i", 1) as i:
        k.load(s, x.at((block + i) * 16))
        k.assign(y.at((block + i) * 16), s)
    flat = {name: tensor(name, 64) for name in ("x", "y", "spare")}
    with pytest.raises(PipelineError, match=r"no block touches \['spare'\]"):
        as_op("i", k.build_kernel(), flat)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ({"m": 60000, "n": 60000}, r"m \* n .* reaches 3600000255"),
        ({"m": 1, "n": 2**31 - 2**15}, r"reaches"),
    ],
)
def test_indices_of_more_than_32_bits_are_refused_before_a_launch(sizes: dict[str, int], what: str) -> None:
    k = Builder("long")
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m * n,), fp32), k.output("y", (m * n,), fp32)
    s = k.shared("s", (256,), fp32)
    with k.block("b", ceil_div(m * n, 256)) as b:
        k.load(s, x.at(b * 256), Copy.PLAIN)
        k.assign(y.at(b * 256), s)
    check_range(k.build_kernel(), {"m": 40000, "n": 50000})
    with pytest.raises(PipelineError, match=what):
        check_range(k.build_kernel(), sizes)


def test_an_extent_that_no_shape_tells_is_asked_for() -> None:
    k = Builder("part")
    n, parts = k.symbol("n"), k.symbol("parts")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    s = k.shared("s", (16,), fp32)
    with k.block("b", parts) as b, k.serial("i", 2) as i:
        k.load(s, x.at((b * 2 + i) * 16))
        k.assign(y.at((b * 2 + i) * 16), s)
    loops, a, b_ = mark_rings(k.build_kernel(), s=2), tensor("a", 64), tensor("b", 64)
    with pytest.raises(PipelineError, match=r"no tensor's shape tells the extents \['parts'\]; pass them in sizes="):
        as_op("p", loops, {"x": a, "y": b_})
    assert as_op("p", loops, {"x": a, "y": b_}, sizes={"parts": 2}).grid == (2,)


def test_blocks_whose_regions_interleave_are_a_race_by_declaration() -> None:
    """Block b takes tiles b, b + 3, ...: the box around them meets those of the other blocks."""
    k = Builder("strided")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    s = k.shared("s", (16,), fp32)
    with k.block("b", 3) as b, k.serial("i", ceil_div(ceil_div(n, 16) - b, 3)) as i:
        k.load(s, x.at((i * 3 + b) * 16))
        k.assign(y.at((i * 3 + b) * 16), s)
    a, c = tensor("a", 256), tensor("c", 256)
    graph = il.Graph("g", (a, c), (as_op("p", mark_rings(k.build_kernel(), s=2), {"x": a, "y": c}),), ("a",), ("c",))
    with pytest.raises(IntraOpRaceError):
        il.Dependencies(graph)
