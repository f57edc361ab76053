"""Bounds that apply to a graph, and the one that its traffic comes nearest to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.core.devices import H200
from interlace.planner.bounds import (
    COMPULSORY,
    CONVOLUTION,
    COSMA,
    SAHA,
    SMITH,
    BoundedQuantity,
    Convolution,
    Gemm,
    Label,
    TrafficBound,
    bound_convolutions,
    bound_pebbling,
)
from interlace.planner.conv_mappings import map_conv_pair, map_convolution
from interlace.planner.graph_bounds import (
    compute_graph_bounds,
    compute_tiling_bounds,
    find_convolutions,
    find_gemms,
    find_nearest_bound,
    is_attention,
)
from interlace.planner.mappings import OROJENESIS, map_chain, map_gemm
from interlace.planner.predict import Traffic, count_traffic
from interlace.workloads import ConvChain, ConvPair, ResNetBlock

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


@pytest.mark.parametrize("kind", [ConvPair, ResNetBlock])
def test_a_pair_of_convolutions_has_their_bounds_and_the_best_tiling(kind: type[ConvPair]) -> None:
    graph = kind.from_fields({"images": 32}, True, "resnet-64").build_graph(H200)
    pair = (Convolution(32, 56, 56, 64, 64),) * 2
    assert find_convolutions(graph) == pair
    small = replace(H200, l2_bytes=64 << 10)
    assert compute_graph_bounds(graph, TRAFFIC, small) == bound_convolutions(pair, 2, small)
    (tiling,) = compute_tiling_bounds(graph, small)
    least = map_conv_pair(*pair).evaluate(32 << 10)
    assert tiling == TrafficBound("2 chained convolutions", 2 * least, Label.MAPPINGS, BOTH, OROJENESIS)
    # A cache of 64 KiB holds too few rows of the intermediate to fuse at no cost.
    assert tiling.bytes > bound_convolutions(pair, 2, small)[1].bytes


def test_a_plan_of_convolutions_moves_the_intermediate_above_its_bound() -> None:
    graph = ConvPair.from_fields({"images": 32}, True, "resnet-64").build_graph(H200)
    traffic = count_traffic(il.build(graph, il.Schedule(132)), H200).traffic
    image, weights, biases = 32 * 56 * 56 * 64 * 2, 9 * 64 * 64 * 2, 64 * 2
    assert traffic.dram_read == image + 2 * weights + 2 * biases
    assert traffic.written_bytes == 2 * image
    loads, both, leading = compute_graph_bounds(graph, traffic, H200)
    (tiling,) = compute_tiling_bounds(graph, H200)
    assert (loads.bytes, both.bytes, tiling.bytes) == (image + 2 * weights, 2 * (image + weights), both.bytes)
    assert (leading.label, leading.source) == (Label.LEADING, CONVOLUTION)
    nearest = find_nearest_bound((both, leading, tiling), traffic)
    assert nearest.bound.name == "2 chained convolutions"
    assert nearest.ratio == pytest.approx(1.5, rel=0.01)


def test_a_chain_of_four_convolutions_has_no_known_best_tiling() -> None:
    graph = ConvChain.from_fields({"images": 2}, True, "vgg-512-7").build_graph(H200)
    chain = (Convolution(2, 7, 7, 512, 512),) * 4
    assert find_convolutions(graph) == chain
    assert compute_graph_bounds(graph, TRAFFIC, H200) == bound_convolutions(chain, 2, H200)
    assert compute_tiling_bounds(graph, H200) == ()


def build_convolutions(*options: dict[str, int], taps: int = 3) -> il.Graph:
    """Build convolutions of 16 channels, each of the result of the one before, of 12 rows."""
    edge, tensors, ops = 12, [il.Tensor("x", (2, 12, 12, 16), il.bf16)], []
    for n, option in enumerate(options):
        reach = option.get("dilation", 1) * (taps - 1) + 1
        edge = (edge + 2 * option.get("padding", 0) - reach) // option.get("stride", 1) + 1
        weight = il.Tensor(f"w{n}", (16, taps, taps, 16), il.bf16)
        result = il.Tensor(f"y{n}", (2, edge, edge, 16), il.bf16)
        ops.append(il.conv2d(f"conv{n}", tensors[-1], weight, result, **option))
        tensors += [weight, result]
    inputs = [tensor.name for tensor in tensors if not tensor.name.startswith("y")]
    return il.Graph("convolutions", (*tensors,), (*ops,), (*inputs,), (tensors[-1].name,))


def test_strides_are_measured_and_keep_a_pair_apart() -> None:
    conv = Convolution(2, 12, 12, 16, 16, 3, 2)
    one = build_convolutions({"stride": 2, "padding": 1})
    assert find_convolutions(one) == (conv,)
    small = replace(H200, l2_bytes=8 << 10)
    (tiling,) = compute_tiling_bounds(one, small)
    assert (tiling.name, tiling.bytes) == ("convolution", 2 * map_convolution(conv).evaluate(4 << 10))
    two = build_convolutions({"stride": 2, "padding": 1}, {"padding": 1})
    then = Convolution(2, 6, 6, 16, 16)
    assert find_convolutions(two) == (conv, then)
    (tiling,) = compute_tiling_bounds(two, H200)
    assert tiling.bytes == 2 * (map_convolution(conv) + map_convolution(then)).evaluate(H200.l2_bytes / 2)


@pytest.mark.parametrize(
    ("option", "taps"), [({}, 3), ({"padding": 2, "dilation": 2}, 3), ({"padding": 1}, 2), ({"stride": 3}, 1)]
)
def test_convolutions_that_the_bounds_cannot_express_have_compulsory_ones(option: dict[str, int], taps: int) -> None:
    graph = build_convolutions(option, taps=taps)
    assert find_convolutions(graph) == ()
    assert [bound.bytes for bound in compute_graph_bounds(graph, TRAFFIC, H200)] == [400, 600]
    assert compute_tiling_bounds(graph, H200) == ()


def test_a_convolution_of_something_else_than_the_result_before_is_no_chain() -> None:
    graph = build_convolutions({"padding": 1}, {"padding": 1})
    first, second = graph.ops
    assert len(find_convolutions(graph)) == 2
    assert find_convolutions(replace(graph, ops=(first, replace(second, reads=first.reads)))) == ()


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
