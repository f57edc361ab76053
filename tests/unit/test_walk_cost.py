"""What ways of tiling matmuls of the one launch take, and which are taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.kernels.matmul import Activation as A
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.walk_cost import Extents, Way, ring_stages, seconds
from interlace.policies.setting import Setting

RELU = il.workloads.FFNShape(4096, 14336, A.RELU, False)
GATED = il.workloads.FFNShape(4096, 14336, A.SILU, True)
DEEP = il.workloads.FFNShape(12288, 6144, A.GELU_TANH, False)
UP = Extents(64, (14336,), 4096, 1)
WIDE = Way(MatmulTile(64, 112, 128), 1, 1, 64)


def way_us(extents: Extents, way: Way, device: il.DeviceSpec = il.H200) -> float:
    return 1e6 * seconds(extents, way, ring_stages([way], device.smem_bytes), device)


def test_weights_take_as_long_as_memory_does_if_one_wave_of_items_streams_them() -> None:
    stream = 14336 * 4096 * 2 / il.H200.dram_bytes_per_s * 1e6
    assert stream < way_us(UP, WIDE) < 1.2 * stream
    half = replace(UP, widths=(7168,))
    assert way_us(half, WIDE) > 0.75 * way_us(UP, WIDE)  # 64 SMs alone do not reach memory's rate


def test_deeper_split_and_wider_tiles_cost_what_they_cost() -> None:
    split = replace(WIDE, parts=2)
    assert way_us(replace(UP, k=8192), WIDE) > 1.8 * way_us(UP, WIDE)
    assert way_us(UP, split) > way_us(UP, WIDE)  # a fix-up, and more items than SMs
    many = Extents(4096, (14336,), 4096, 1)
    tall = Way(MatmulTile(128, 256, 64, num_warps=8), 1, 1, 128)
    assert way_us(many, tall) < way_us(many, replace(tall, tile=replace(tall.tile, n=64)))  # tokens load for 64 rows


def test_ops_side_by_side_have_tiles_of_their_own() -> None:
    """Three ops of 512 rows are 9 tiles of 200, where 1536 rows were 8; 66 SMs of two are one wave."""
    one, three = (Extents(64, widths, 2048, 1) for widths in ((1536,), (512, 512, 512)))
    two_sms = replace(il.H200, sms=8)
    way = Way(MatmulTile(64, 200, 64), 1, 1, 64)
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
    ],
)
def test_what_was_fastest_is_taken(
    shape: il.workloads.FFNShape, m: int, ways: list[tuple[int, int, int]]
) -> None:
    setting = il.OneLaunchExecutor.default(il.workloads.ffn(m, shape), il.H200)
    assert found(setting) == ways


@pytest.mark.parametrize("m", [33, 65, 129, 150, 300, 777])
@pytest.mark.parametrize("shape", [RELU, GATED], ids=["relu", "gated"])
def test_no_tile_has_many_rows_of_tokens_that_are_not_there(shape: il.workloads.FFNShape, m: int) -> None:
    setting = il.OneLaunchExecutor.default(il.workloads.ffn(m, shape), il.H200)
    for tokens, _, _ in found(setting):
        assert -(-m // tokens) * tokens < 1.35 * m or tokens in (64, 128)


def test_ways_of_a_search_begin_with_the_default_and_are_unlike() -> None:
    graph = il.workloads.ffn(256, GATED)
    likely = list(il.OneLaunchExecutor.likely(graph, il.H200))
    assert found(likely[0]) == found(il.OneLaunchExecutor.default(graph, il.H200))
    parts = [tuple(p for _, _, p in found(setting)) for setting in likely]
    assert len(set(parts)) == len(parts) > 3


def found(setting: Setting) -> list[tuple[int, int, int]]:
    """Tokens, weight rows and parts of each op."""
    return [(int(dict(op.params)["BM"]), int(dict(op.params)["BN"]), op.parts) for _, op in setting.ops]
