"""Costs of tilings of the megakernel's matmuls, and the tilings that are chosen."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import ShapeError
from interlace.kernels.matmul import Activation as A
from interlace.kernels.matmul.megakernel_cost import (
    MatmulExtents,
    TilingCandidate,
    count_ring_stages,
    estimate_norm_seconds,
    estimate_seconds,
)
from interlace.kernels.matmul.tile import MatmulTile
from interlace.policies.schedule import Schedule
from interlace.workloads import LLAMAS, build_decode_graph

from ..benchmarks import BENCHMARKS, load_script

RELU = il.workloads.FFNShape(4096, 14336, A.RELU, False)
GATED = il.workloads.FFNShape(4096, 14336, A.SILU, True)
DEEP = il.workloads.FFNShape(12288, 6144, A.GELU_TANH, False)
UP = MatmulExtents(64, (14336,), 4096, 1)
WIDE = TilingCandidate(MatmulTile(64, 112, 128), 1, 1, 64)


def way_us(extents: MatmulExtents, way: TilingCandidate, device: il.DeviceSpec = il.H200) -> float:
    return 1e6 * estimate_seconds(extents, way, count_ring_stages([way], device.smem_bytes), device)


def test_weights_take_as_long_as_memory_does_if_one_wave_of_items_streams_them() -> None:
    stream = 14336 * 4096 * 2 / il.H200.dram_bytes_per_s * 1e6
    assert stream < way_us(UP, WIDE) < 1.2 * stream
    half = replace(UP, widths=(7168,))
    assert way_us(half, WIDE) > 0.75 * way_us(UP, WIDE)  # 64 SMs alone do not reach memory's rate


def test_deeper_split_and_wider_tiles_cost_what_they_cost() -> None:
    split = replace(WIDE, parts=2)
    assert way_us(replace(UP, k=8192), WIDE) > 1.8 * way_us(UP, WIDE)
    assert way_us(UP, split) > way_us(UP, WIDE)  # a fix-up, and more items than SMs
    many = MatmulExtents(4096, (14336,), 4096, 1)
    tall = TilingCandidate(MatmulTile(128, 256, 64, num_warps=8), 1, 1, 128)
    assert way_us(many, tall) < way_us(many, replace(tall, tile=replace(tall.tile, n=64)))  # tokens load for 64 rows


def longer_us(rows: MatmulExtents, way: TilingCandidate) -> float:
    """Return the time that scaling takes, in a ring of eight stages."""
    return 1e6 * (
        estimate_seconds(rows, way, 8, il.H200) - estimate_seconds(rows, replace(way, has_gains=False), 8, il.H200)
    )


@pytest.mark.parametrize("waves", [1, 2, 4])
def test_one_warpgroup_scales_ahead_of_products_but_an_sms_only_item(waves: int) -> None:
    """120 ns a panel of each tile, by as much as memory does not hide."""
    rows = MatmulExtents(64, (waves * 132 * 32,), 4096, 1, has_own_norm=True)
    products = 2 * 64 * 32 * 4096 * 132 / 790e12 * 1e6
    stream = 132 * 32 * 4096 * 2 / il.H200.dram_bytes_per_s * 1e6
    assert products + 64 * 0.12 > stream
    loads = (64 + 32) * 4096 * 2 / il.H200.sm_l2_bytes_per_s * 1e6
    scaled = waves * (products + 64 * 0.12 - max(stream, loads, 16 * 0.3))
    way = TilingCandidate(MatmulTile(64, 32, 256), 1, 1, 64, has_gains=True)
    assert longer_us(rows, way) == pytest.approx(scaled if waves > 1 else 0.0, abs=1e-6)


@pytest.mark.parametrize("width", [64, 112, 160, 256])
def test_more_warpgroups_scale_beside_products_and_loads(width: int) -> None:
    """45 ns a panel, and what 180 ns beside 7 tenths of its products take longer than whatever is longest."""
    rows = MatmulExtents(256, (width * 66,), 4096, 1, has_own_norm=True)  # an item for each SM, of 64 panels
    way = TilingCandidate(MatmulTile(128, width, 64, num_warps=8), 1, 1, 128, has_gains=True)
    products = 2 * 128 * width * 64 * 132 / 790e12 * 1e6
    longest = max(products, 0.3, (128 + width) * 64 * 2 / il.H200.sm_l2_bytes_per_s * 1e6)  # or stages, or loads
    beside = max(0.0, 0.18 + 0.7 * products - longest)
    assert (beside > 0.04) == (width == 160)
    assert longer_us(rows, way) == pytest.approx(64 * (0.045 + beside), rel=1e-6)
    more = replace(rows, m=384, widths=(width * 44,))  # as many items, of three tiles that have the same weights
    assert longer_us(more, way) == pytest.approx(64 * (0.11 + beside), rel=1e-6)


@pytest.mark.parametrize(("m", "besides"), [(384, 0.045), (385, 0.11)])
def test_scaling_costs_more_beyond_two_tiles_of_rows_however_many_they_have(m: int, besides: float) -> None:
    three = TilingCandidate(MatmulTile(192, 96, 64, num_warps=12), 1, 1, 192, has_gains=True)
    rows = MatmulExtents(m, (96 * 40,), 4096, 1, has_own_norm=True)
    products = 2 * 192 * 96 * 64 * 132 / 790e12 * 1e6
    beside = 3 * 0.09 + 0.7 * products - max(products, (192 + 96) * 64 * 2 / il.H200.sm_l2_bytes_per_s * 1e6)
    assert beside > 0.04
    assert longer_us(rows, three) == pytest.approx(1.035 * 64 * (besides + beside), rel=1e-6)


def test_memory_and_loads_are_in_each_others_way_where_deep_stages_have_more_tokens_than_weights() -> None:
    """To the sixth root of the sum of both times' sixth powers (benchmarks/notes/tiling.md)."""
    rows = MatmulExtents(96, (132 * 80,), 4096, 1)
    deep = TilingCandidate(MatmulTile(128, 80, 128, num_warps=8), 1, 1, 96)
    stream = 132 * 80 * 4096 * 2 / il.H200.dram_bytes_per_s * 1e6
    loads = (96 + 80) * 4096 * 2 / il.H200.sm_l2_bytes_per_s * 1e6

    apart = estimate_seconds(rows, replace(deep, loaded_rows=80), 8, il.H200)
    longer = 1e6 * (estimate_seconds(rows, deep, 8, il.H200) - apart)
    assert longer == pytest.approx((stream**6 + loads**6) ** (1 / 6) - max(stream, 160 / 176 * loads), abs=1e-6)


def test_others_wait_for_an_op_that_normalises_as_long_as_its_busiest_sm_reads_rows() -> None:
    first = il.H200.latencies.hand_off_ns + il.H200.latencies.fill_ns
    for m, rows in ((1, 1), (132, 1), (133, 2), (1024, 8)):
        assert estimate_norm_seconds(m, 8192, il.H200) == pytest.approx((first + rows * 8192 * 2 / 7) * 1e-9)


@pytest.mark.parametrize(
    ("m", "hidden", "ffn", "gated"),
    [(48, 3072, 8192, True), (17, 4544, 18176, False), (48, 5120, 14336, True)],
)  # 6 to 16 % faster than tiles by what memory takes (benchmarks/notes/tiling.md)
def test_tiles_whose_rows_are_normalised_are_wider_where_an_sm_has_several(
    m: int, hidden: int, ffn: int, gated: bool
) -> None:
    shape = il.workloads.FFNShape(hidden, ffn, A.SILU if gated else A.RELU, gated)
    graphs = (il.workloads.ffn(m, replace(shape, norm=norm)) for norm in (None, 1e-5))
    alone, layer = (il.MegakernelExecutor.select_default(graph, il.H200).get_op_tiling("up") for graph in graphs)
    items = -(-ffn // dict(alone.params)["BN"]) * alone.parts
    assert items > 132
    assert dict(layer.params)["BN"] > dict(alone.params)["BN"]


def test_ops_side_by_side_have_tiles_of_their_own() -> None:
    """Three ops of 512 rows are 9 tiles of 200, where 1536 rows were 8; 66 SMs of two are one wave."""
    one, three = (MatmulExtents(64, widths, 2048, 1) for widths in ((1536,), (512, 512, 512)))
    two_sms = replace(il.H200, sms=8)
    way = TilingCandidate(MatmulTile(64, 200, 64), 1, 1, 64)
    assert way_us(three, way, two_sms) > 1.5 * way_us(one, way, two_sms)


@pytest.mark.parametrize(
    ("shape", "m", "ways"),
    [
        # Measured to be best, or within 1 % of it (explored-launch-h200.json).
        (DEEP, 64, [(64, 96, 2), (64, 96, 1)]),
        (DEEP, 256, [(128, 192, 2), (128, 192, 1)]),
        (DEEP, 512, [(128, 192, 1), (128, 192, 1)]),
        (RELU, 128, [(128, 112, 1), (128, 96, 3)]),
        (RELU, 200, [(200, 128, 1), (200, 128, 4)]),
        (RELU, 256, [(128, 224, 1), (128, 192, 3)]),
        (GATED, 256, [(128, 112, 1), (128, 192, 3)]),
        (GATED, 160, [(160, 128, 1), (160, 128, 4)]),
        (GATED, 192, [(192, 56, 1), (192, 96, 3)]),
        (DEEP, 192, [(192, 96, 2), (192, 96, 1)]),
        (il.workloads.FFNShape(1600, 6400, A.GELU_TANH, False), 143, [(192, 56, 1), (192, 64, 5)]),
    ],
)
def test_what_was_fastest_is_taken(shape: il.workloads.FFNShape, m: int, ways: list[tuple[int, int, int]]) -> None:
    schedule = il.MegakernelExecutor.select_default(il.workloads.ffn(m, shape), il.H200)
    assert list_tiles(schedule) == ways


def test_three_warpgroups_take_as_many_tokens_as_fill_them_beside_no_text_that_has_fewer_warps() -> None:
    def find_most_warps(graph: il.Graph) -> int:
        tiles = il.MegakernelExecutor.select_default(graph, il.H200).tiles
        return max(params["num_warps"] for params in tiles.values())

    assert [find_most_warps(il.workloads.ffn(m, DEEP)) for m in (64, 128, 150, 192, 256)] == [4, 8, 12, 12, 8]
    layer = replace(DEEP, norm=1e-5)
    assert find_most_warps(il.workloads.ffn(192, layer, norm_rows=2)) == 12
    step = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=1), 192, 1088, il.H200)
    assert find_most_warps(step) == 8


def test_what_cannot_have_three_warpgroups_says_so() -> None:
    wide, few = MatmulTile(24, 192, 64, num_warps=12, swap_ab=True), MatmulTile(16, 32, 64, swap_ab=True)
    x, y, z = (il.Tensor(name, (16, 64), il.bf16) for name in "xyz")
    v, u = (il.Tensor(name, (64, 64), il.bf16) for name in "vu")
    last = il.copy("last", y, z, (16, 64))
    first, narrow = il.matmul("first", x, v, y, tile=wide), il.matmul("next", y, u, z, tile=few)
    for behind, refused in (
        (narrow, "fewer than 64 weight rows run in 8 warps at most"),
        (last, "op 'last' runs in 8 warps at most, and an op of its launch"),
    ):
        graph = il.Graph("some", (x, v, u, y, z), (first, behind), ("x", "v", "u"), ("z",))
        with pytest.raises(ShapeError, match=refused):
            il.MegakernelExecutor(il.build(graph, il.Schedule(4)), il.RunOptions("meta"))
    alone = il.Graph("one", (x, v, y), (first,), ("x", "v"), ("y",))
    with pytest.raises(ShapeError, match="tile for 12 warps: Triton's are powers of two"):
        il.SerialExecutor(il.build(alone, il.Schedule(4)), il.RunOptions("meta"))


def test_three_warpgroups_leave_less_shared_memory_and_registers() -> None:
    three = TilingCandidate(MatmulTile(192, 128, 64, num_warps=12), 1, 1, 192)
    two = replace(three, tile=replace(three.tile, num_warps=8))
    assert count_ring_stages([three], il.H200.smem_bytes) < count_ring_stages([two], il.H200.smem_bytes)
    up = MatmulExtents(192, (14336,), 4096, 1)
    assert estimate_seconds(up, three, 4, il.H200) == pytest.approx(1.035 * estimate_seconds(up, two, 4, il.H200))
    tile = MatmulTile(192, 200, 64, num_warps=12)
    graph = il.workloads.ffn(192, DEEP, up=tile, down=tile)
    with pytest.raises(ShapeError, match="sums of 100 registers a thread, and at most 96 fit"):
        il.MegakernelExecutor(il.build(graph, il.Schedule(4)), il.RunOptions("meta"))


@pytest.mark.parametrize("m", [33, 65, 129, 150, 300, 777])
@pytest.mark.parametrize("shape", [RELU, GATED], ids=["relu", "gated"])
def test_no_tile_has_many_rows_of_tokens_that_are_not_there(shape: il.workloads.FFNShape, m: int) -> None:
    schedule = il.MegakernelExecutor.select_default(il.workloads.ffn(m, shape), il.H200)
    for tokens, _, _ in list_tiles(schedule):
        assert -(-m // tokens) * tokens < 1.35 * m or tokens in (64, 128)


@pytest.mark.parametrize(("model", "batch"), [("qwen2.5-0.5b", 100), ("qwen3-0.6b", 100)])
def test_steps_of_more_tokens_than_a_server_has_slots_are_tiled_op_by_op(model: str, batch: int) -> None:
    """Their products are of five kinds, of which few ways each are combined: some share a ring in any case."""
    graph = build_decode_graph(replace(LLAMAS[model], layers=1), batch, 1088, il.H200)
    tiles = il.MegakernelExecutor.select_default(graph, il.H200).tiles
    assert len({tile["BN"] for tile in tiles.values()}) > 2
    assert tiles["layers.0.q_heads"] != tiles["logits"]


def test_ways_of_a_search_begin_with_the_default_and_are_unlike() -> None:
    graph = il.workloads.ffn(256, GATED)
    likely = list(il.MegakernelExecutor.iter_likely(graph, il.H200))
    assert list_tiles(likely[0]) == list_tiles(il.MegakernelExecutor.select_default(graph, il.H200))
    parts = [tuple(p for _, _, p in list_tiles(schedule)) for schedule in likely]
    assert len(set(parts)) == len(parts) > 3


@pytest.fixture(scope="module")
def fit() -> Any:
    return SimpleNamespace(**load_script("fit_matmul_cost"))


def read_rows(fit: Any, name: str = "walk-cost-h200.json") -> list[Any]:
    record = json.loads((BENCHMARKS / "results" / name).read_text())
    return [fit.Row(**row) for row in record["rows"]]


def test_constants_are_as_good_as_those_fitted_to_what_was_measured(fit: Any) -> None:
    rows = read_rows(fit)
    assert sum(len(row.ways_us) for row in rows) == 236
    best = fit.descend(rows, il.H200)
    assert fit.rms(rows, best) < fit.rms(rows, il.H200) < 0.0215
    assert fit.over_fastest(rows, il.H200) < 1.004
    np.testing.assert_allclose(astuple(best.stages), astuple(il.H200.stages), rtol=0.7)


def test_of_ffns_that_no_constant_was_fitted_to_the_way_taken_is_hardly_slower_than_the_fastest(fit: Any) -> None:
    rows = read_rows(fit, "walk-cost-drawn-h200.json")
    assert fit.over_fastest(rows, il.H200) < 1.005
    assert fit.rms(rows, il.H200) < 0.06


def test_a_fit_finds_the_constants_that_made_the_times_whatever_each_row_is_slower_by(fit: Any) -> None:
    planted = replace(il.H200, stages=replace(il.H200.stages, least_ns=330.0, turned=1.4, shallow=0.4))
    rows = [
        replace(
            row, ways_us={way: us * (1 + n % 7) for way, us in zip(row.ways_us, row.predicted_us(planted), strict=True)}
        )
        for n, row in enumerate(read_rows(fit))
    ]
    found = fit.descend(rows, il.H200)
    assert fit.rms(rows, found) < 1e-3 < fit.rms(rows, il.H200)
    np.testing.assert_allclose(astuple(found.stages), astuple(planted.stages), rtol=0.02)


def test_ways_to_measure_are_what_is_taken_and_others_as_a_record_names_them(fit: Any) -> None:
    rows = [*fit.draw_rows(1, 8)]
    assert rows == [*fit.draw_rows(1, 8)]
    assert len({row.gated for row in rows}) == 2
    for row in rows[:2]:
        some = fit.list_tilings(row, il.H200, 5)
        assert len(some) == 5
        default = il.MegakernelExecutor.select_default(row.workload.build_graph(il.H200), il.H200)
        assert next(iter(some.values())) == default.op_tilings
        assert len(set(replace(row, ways_us=some).predicted_us(il.H200))) == 5


def list_tiles(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Tokens, weight rows and parts of each op."""
    ops = schedule.op_tilings.values()
    return [(int(dict(op.params)["BM"]), int(dict(op.params)["BN"]), op.parts) for op in ops]


@pytest.mark.parametrize("narrow", [True, False])
def test_tiles_of_few_tokens_are_narrow_where_they_load_little_more(narrow: bool) -> None:
    """As measured at 16 tokens (benchmarks/notes/norms.md); the last of each are nearest to the bound."""
    light = (576, 1536, True), (960, 2560, True), (768, 3072, False), (2048, 2048, True)
    for hidden, width, gated in light if narrow else ((2560, 10240, False), (4096, 2048, False), (1024, 4096, False)):
        activation = il.Activation.SILU if gated else il.Activation.GELU_TANH
        graph = il.workloads.ffn(16, il.workloads.FFNShape(hidden, width, activation, gated))
        schedule = il.MegakernelExecutor.select_default(graph, il.H200)
        assert [params["BN"] < 64 for params in schedule.tiles.values()] == [narrow, narrow], (hidden, width)
        assert any(own.parts > 1 for own in schedule.op_tilings.values()) != narrow
