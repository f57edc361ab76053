"""Causal attention over packed sequences: what it computes, and what its access maps say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlace as il
from interlace.core.errors import DTypeError, InterlaceError, ParamError, PlanError, ShapeError
from interlace.deploy import count_flops
from interlace.kernels.causal_attention import AttentionTile, causal_attention
from interlace.workloads.prefill import PrefillAttention, pack_sequences, prefill_attention

from ..draws import EXAMPLES
from ..prefill import compute_exact, inputs

SMALL = il.MatmulTile(16, 16, 16)


@pytest.mark.parametrize(
    ("group", "lengths", "rows", "window"),
    [(1, (37,), 37, 37), (4, (20, 1, 29), 64, 64), (8, (40, 40), 80, 40), (2, (70, 20), 100, 33), (1, (), 20, 20)],
)
def test_sequences_of_any_lengths_are_what_they_are_alone(
    group: int, lengths: tuple[int, ...], rows: int, window: int
) -> None:
    tile = AttentionTile(32, 16)
    graph = prefill_attention(rows, 24, 8, 8 // group, 16, il.fp32, longest=window, tile=tile, product=SMALL)
    t = inputs(graph, pack_sequences(lengths, rows))
    out = il.ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=0).run(t)["out"]
    np.testing.assert_allclose(out, compute_exact(t, 16, window), rtol=0, atol=1e-12)
    assert not out[sum(lengths) :].any()


def test_padding_may_stand_between_sequences() -> None:
    first = np.array([0] * 10 + [99] * 7 + [17] * 13 + [99] * 2 + [32] * 8, np.int32)
    graph = prefill_attention(40, 24, 2, 1, 16, il.fp32, tile=AttentionTile(16, 16), product=SMALL)
    t = inputs(graph, first)
    out = il.ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=0).run(t)["out"]
    np.testing.assert_allclose(out, compute_exact(t, 16, 40), rtol=0, atol=1e-12)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=6),
    padding=st.integers(0, 40),
    window=st.integers(1, 130),
    m=st.sampled_from((16, 32, 64)),
)
@EXAMPLES
def test_maps_cover_what_rows_see_and_say_no_more_of_one_sequence(
    lengths: list[int], padding: int, window: int, m: int
) -> None:
    rows = sum(lengths) + padding
    if not rows:
        return
    op = prefill_attention(rows, 8, 2, 1, 16, longest=window, tile=AttentionTile(m, 16)).op("attention")
    zeros = np.zeros(op.tiles, np.int64)
    shapes = {a.arg: (rows, 32) if a.arg == "q" else (rows, 16)[: len(a.spans)] for a in op.reads}
    reads = {a.arg: a.compute_bounds(shapes[a.arg], op.compute_coords(), zeros, zeros) for a in op.reads}
    first = pack_sequences(lengths, rows)
    row = np.arange(rows)
    begin = np.maximum(first, row - window + 1)
    written = np.zeros(rows, int)
    for (lo, hi), (low, high) in zip(
        zip(reads["q"][0][:, 0], reads["q"][1][:, 0], strict=True),
        zip(reads["k"][0][:, 0], reads["k"][1][:, 0], strict=True),
        strict=True,
    ):
        written[lo:hi] += 1
        live = begin[lo:hi][begin[lo:hi] <= row[lo:hi]]
        assert (live >= low).all()
        assert high == hi
        if len(lengths) == 1 and not padding:
            assert low == live.min()
    assert (written == 2).all()  # by each of two heads
    for arg in ("v", "first"):
        assert (reads[arg][0][:, 0] == reads["k"][0][:, 0]).all()
        assert (reads[arg][1][:, 0] == reads["k"][1][:, 0]).all()


def test_the_product_of_a_block_of_rows_waits_for_its_heads_alone() -> None:
    tile = AttentionTile(16, 16)
    graph = prefill_attention(64, 32, 4, 2, 16, il.fp32, tile=tile, product=il.MatmulTile(16, 32, 16))
    plan = il.build(graph, il.Schedule(4, interleaving=il.RowPanels(1)))
    assert plan.items.op.tolist() == [0, 0, 0, 0, 1] * 4
    assert plan.items.tile.tolist()[4::5] == [3, 2, 1, 0]  # the longest tiles, those of the last rows, run first
    assert il.verify(plan).longest_chain == 2


def test_flops_are_those_of_the_pairs_that_see_each_other() -> None:
    for batch in (1, 3):
        problem = PrefillAttention.from_fields({"tokens": 100, "batch": batch}, gpu=False)
        found = count_flops(problem.build_graph(il.CPU))
        assert found == pytest.approx(problem.flops)
        assert problem.flops == batch * (4 * 4 * 16 * (100 * 101 // 2) + 2 * 100 * 64 * 96)


def test_a_rule_takes_large_tiles_that_fit_and_others_are_refused_with_their_bytes() -> None:
    assert AttentionTile.heuristic(128, 2, il.H200) == AttentionTile(128, 64, 3, 8)
    assert AttentionTile.heuristic(64, 2, il.H200) == AttentionTile(128, 64, 3, 4)
    for head_dim, itemsize in ((16, 2), (256, 2), (128, 4), (256, 4)):
        tile = AttentionTile.heuristic(head_dim, itemsize, il.H200)
        assert tile.compute_smem_bytes(head_dim, itemsize) <= il.H200.smem_bytes

    def check(tile: AttentionTile) -> None:
        il.SerialExecutor.check_tiles(prefill_attention(512, 512, 4, 4, 128, tile=tile), il.H200)

    with pytest.raises(InterlaceError, match="4 stages take 294912 bytes of shared memory, and NVIDIA H200 has 232448"):
        check(AttentionTile(128, 128, 4, 8))
    with pytest.raises(InterlaceError, match="sums of 256 registers per thread"):
        check(AttentionTile(128, 128, 2, 4))
    check(AttentionTile(128, 64, 3, 8))


def test_the_one_launch_takes_heads_and_tiles_that_its_products_have() -> None:
    def obstacle(head_dim: int, dtype: il.DType = il.bf16) -> str | None:
        return il.MegakernelExecutor.fallback_reason(prefill_attention(512, 512, 4, 2, head_dim, dtype), il.H200)

    assert obstacle(64) is obstacle(128) is obstacle(256) is None
    assert "heads of 32 elements, and its body in the megakernel takes multiples of 16 from 64 to 256" in str(
        obstacle(32)
    )
    assert "multiplies bf16 and fp16" in str(obstacle(64, il.fp32))
    for rows, m in ((20, 64), (2000, 128)):
        graph = prefill_attention(rows, 512, 4, 2, 128)
        (tiled, *_) = il.MegakernelExecutor.iter_tilings(graph, il.H200)
        assert [tiled.op("attention").param(name) for name in ("BM", "BN")] == [m, 64]
    narrow = prefill_attention(512, 512, 4, 2, 64, tile=AttentionTile(64, 64, 1, 8), product=il.MatmulTile(128, 128))
    with pytest.raises(InterlaceError, match="2 warpgroups have 64 rows each; use 128 queries"):
        il.MegakernelExecutor.check_tiles(narrow, il.H200)


def test_what_tells_sequences_apart_is_no_result_of_the_launch() -> None:
    """All roles count stages by it, ahead of the waits."""
    graph = prefill_attention(128, 128, 2, 2, 64, tile=AttentionTile(64, 64, 1, 4))
    given = il.Tensor("given", (128,), il.int32)
    text = il.CudaBody("DEVICE void any(const Tile& tile, const Arguments& a) {}", "any")
    x, y = ((tensor, (il.ALL,)) for tensor in (given, graph.tensor("first")))
    op = il.Kernel("any", megakernel=text).make_op("any", (1,), {"x": x}, {"y": y})
    names = tuple("given" if name == "first" else name for name in graph.inputs)
    whole = il.Graph("written", (given, *graph.tensors), (op, *graph.ops), names, ("out",))
    with pytest.raises(PlanError, match="'attention' loads first 'first' ahead of every wait, but op 'any' writes it"):
        il.MegakernelExecutor.check(whole, il.H200)


def test_a_plan_from_a_file_is_held_against_what_the_kernel_makes() -> None:
    graph = prefill_attention(64, 32, 4, 2, 16, longest=40)
    assert il.read_plan(il.build(graph, il.Schedule(2)).to_json()).graph == graph
    op = graph.op("attention")
    with pytest.raises(ParamError, match="kernel 'causal_attention' makes an op with"):
        replace(graph, ops=(replace(op, params=(*op.params[:1], ("WINDOW", 64), *op.params[2:])), graph.ops[1]))


def tensors(**other: il.Tensor) -> dict[str, il.Tensor]:
    shapes = {"q": (40, 64), "k": (40, 32), "v": (40, 32), "out": (40, 64)}
    made = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    return {**made, "first": il.Tensor("first", (40,), il.int32), **other}


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ({}, {"head_dim": 24}, ShapeError, "heads of 24 elements; they must be a power of two"),
        ({"k": il.Tensor("k", (40, 48), il.bf16)}, {}, ShapeError, "each for as many of q"),
        ({"v": il.Tensor("v", (39, 32), il.bf16)}, {}, ShapeError, r"v .* must have shape \(40, 32\)"),
        ({"first": il.Tensor("first", (40,), il.fp32)}, {}, DTypeError, "must be int32"),
        ({"k": il.Tensor("k", (40, 32), il.fp16)}, {}, DTypeError, "mixes dtypes"),
        ({}, {"window": 0}, ShapeError, "a window of 0 rows; use a positive number, or None"),
    ],
)
def test_what_is_no_attention_is_refused(
    given: dict[str, il.Tensor], options: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        causal_attention("a", **tensors(**given), **{"head_dim": 16, **options})
    with pytest.raises(ShapeError, match="extents must be powers of two from 16 to 1024"):
        AttentionTile(48, 64)
    with pytest.raises(ShapeError, match="do not go into 10 rows"):
        pack_sequences((7, 5), 10)
