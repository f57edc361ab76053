"""Bounds that apply to a graph, and the one that its traffic comes nearest to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.core.devices import H200
from interlace.planner.bounds import (
    COMPULSORY,
    COSMA,
    SAHA,
    SMITH,
    BoundedQuantity,
    Gemm,
    Label,
    TrafficBound,
    bound_pebbling,
)
from interlace.planner.graph_bounds import (
    compute_graph_bounds,
    compute_tiling_bounds,
    find_gemms,
    find_nearest_bound,
    is_attention,
)
from interlace.planner.mappings import OROJENESIS, map_chain, map_gemm
from interlace.planner.predict import Traffic

TRAFFIC = Traffic(1000, 800, {"x": 500, "w": 100}, 200, 400)
LOADS, BOTH = BoundedQuantity.LOADS, BoundedQuantity.LOADS_AND_STORES


def test_a_matmul_has_a_pebble_bound_and_the_best_tiling_of_the_l2() -> None:
    graph, gemm = il.workloads.one_matmul(8192, 8192, 8192), Gemm(8192, 8192, 8192)
    pebbles, tiling = compute_tiling_bounds(graph, H200)
    assert pebbles == bound_pebbling((gemm,), 2, H200)
    least = map_gemm(gemm).evaluate(H200.l2_bytes / 2)
    assert tiling == TrafficBound("matmul", 2 * least, Label.MAPPINGS, BOTH, OROJENESIS)
    # Tiles of C of all rows and a third of the columns: A is loaded three times, B once, and C stored once.
    assert pebbles.bytes < tiling.bytes == 2 * 5 * 8192**2
    assert pebbles.source == COSMA


def test_a_gated_ffn_has_the_best_tiling_of_its_chain() -> None:
    shape = il.workloads.FFNShape(512, 1024, il.Activation.SILU, gated=True)
    graph = il.workloads.ffn(256, shape)
    chain = Gemm(256, 2048, 512), Gemm(256, 512, 1024)
    assert find_gemms(graph) == chain
    small = replace(H200, l2_bytes=64 << 10)
    (tiling,) = [bound for bound in compute_tiling_bounds(graph, small) if bound.label is Label.MAPPINGS]
    assert (tiling.name, tiling.bytes) == ("2 chained matmuls", 2 * map_chain(*chain).evaluate(32 << 10))
    # Where no tiling fits, the pebble bound is left.
    assert [bound.source for bound in compute_tiling_bounds(graph, replace(H200, l2_bytes=4))] == [COSMA]


def test_attention_has_bounds_of_its_own() -> None:
    graph = il.workloads.Attention.from_fields({"m": 4096}, True).build_graph(H200)
    assert is_attention(graph)
    bounds = compute_graph_bounds(graph, TRAFFIC, H200)
    assert [(bound.name, bound.source) for bound in bounds] == [
        ("attention", COMPULSORY),
        ("attention", COMPULSORY),
        ("attention", SAHA),
    ]
    assert bounds[1].bytes == 4 * 4096 * 512 * 2
    (tiling,) = compute_tiling_bounds(graph, H200)
    assert (tiling.name, tiling.bytes) == ("attention", bounds[1].bytes)


def test_other_graphs_have_compulsory_bounds_alone() -> None:
    graph = il.workloads.two_copies(256, 256)
    assert [bound.bytes for bound in compute_graph_bounds(graph, TRAFFIC, H200)] == [400, 600]
    assert (find_gemms(graph), is_attention(graph), compute_tiling_bounds(graph, H200)) == ((), False, ())


def test_a_matmul_of_something_else_than_the_result_before_is_no_chain() -> None:
    graph = il.workloads.two_matmuls(64, 64, 64, 64)
    first, second = graph.ops
    assert len(find_gemms(graph)) == 2
    swapped = replace(graph, ops=(first, replace(second, reads=first.reads)))
    assert find_gemms(swapped) == ()


@pytest.mark.parametrize(
    ("extra", "nearest", "ratio"),
    [
        ((), ("safe", 600), 800 / 600),
        ((TrafficBound("matmul", 590, Label.LEADING, LOADS, SMITH),), ("leading order", 590), 600 / 590),
        # A bound above the figure does not apply.
        ((TrafficBound("matmul", 601, Label.LEADING, LOADS, SMITH),), ("safe", 600), 800 / 600),
        ((TrafficBound("matmul", 800, Label.MAPPINGS, BOTH, OROJENESIS),), ("best tiling", 800), 1.0),
    ],
)
def test_the_nearest_bound_is_one_that_the_figure_keeps(extra, nearest: tuple[str, int], ratio: float) -> None:
    safe = (
        TrafficBound("matmul", 400, Label.SAFE, LOADS, COMPULSORY),
        TrafficBound("matmul", 600, Label.SAFE, BOTH, COMPULSORY),
    )
    found = find_nearest_bound((*safe, *extra), TRAFFIC)
    assert (found.bound.label.value, found.bound.bytes) == nearest
    assert found.ratio == pytest.approx(ratio)
