"""Convolutions: the reference against PyTorch, exact dependencies through halos, tilings, and bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.devices import H200
from interlace.core.errors import ArgumentError, DTypeError, ParamError, PlanFormatError, ShapeError
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.dependencies import Dependencies
from interlace.kernels.conv2d import Conv2DTile, conv2d
from interlace.kernels.conv2d.cost import ConvCandidate, estimate_seconds
from interlace.kernels.conv2d.megakernel_body import build_tile
from interlace.kernels.conv2d.tile import ConvExtents, read_extents
from interlace.kernels.conv2d.tuning import MEGAKERNEL_TUNING, list_pixel_tiles
from interlace.planner.retile import retile
from interlace.workloads import ConvPair, conv_chain

from ..convolutions import Convolution, draw_convolution

RANDOM = np.random.default_rng(7)


@pytest.mark.parametrize("seed", range(24))
def test_reference_matches_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    conv, tile = draw_convolution(random)
    graph = conv.build_graph(tile)
    inputs = {name: random.standard_normal(graph.tensor(name).shape) for name in graph.inputs}
    right = conv.answer({name: torch.from_numpy(value) for name, value in inputs.items()})
    chunks = -(-conv.x[3] // tile.k)
    split = {"conv": il.SplitK(2)} if chunks > 1 else {}
    plan = il.build(graph, il.Schedule(2, split=split))
    il.verify(plan)
    out = il.ReferenceExecutor(plan, seed=seed).run(inputs)["out"]
    assert np.abs(out - right.numpy()).max() < 1e-12 * max(1.0, float(right.abs().max()))


def list_rows(extents: ConvExtents, first: int, count: int) -> set[int]:
    """Return the input rows that output rows read, by plain loops."""
    (stride, _), (pad, _), (dilation, _) = extents.stride, extents.padding, extents.dilation
    rows = {
        p * stride - pad + r * dilation
        for p in range(first, min(first + count, extents.out_rows))
        for r in range(extents.taps_h)
    }
    return {row for row in rows if 0 <= row < extents.height}


@pytest.mark.parametrize("policy", [il.TileSync(), il.Conv2DSync()], ids=str)
@pytest.mark.parametrize(
    ("edge", "rows", "stride", "pad", "dilation"), [(6, (2, 3), 1, 1, 1), (9, (3, 2), 2, 1, 1), (9, (1, 3), 1, 2, 2)]
)
def test_tile_waits_for_exactly_the_rows_in_its_halo(
    policy: il.SyncPolicy, edge: int, rows: tuple[int, int], stride: int, pad: int, dilation: int
) -> None:
    first = Convolution((2, edge, edge, 16), 16, (3, 3), padding=(1, 1), epilogue=())
    second = Convolution((2, edge, edge, 16), 8, (3, 3), (stride,) * 2, (pad,) * 2, (dilation,) * 2, ())
    e = second.extents
    shapes = {"x": first.x, "w1": (16, 3, 3, 16), "h": second.x, "w2": (8, 3, 3, 16)}
    t = {name: il.Tensor(name, shape, il.fp32) for name, shape in shapes.items()}
    out = il.Tensor("out", (2, e.out_rows, e.out_columns, 8), il.fp32)
    ops = (
        conv2d("first", t["x"], t["w1"], t["h"], padding=1, tile=Conv2DTile(1, rows[0], 8, 8)),
        conv2d(
            *("second", t["h"], t["w2"], out),
            stride=stride,
            padding=pad,
            dilation=dilation,
            tile=Conv2DTile(1, rows[1], 8, 8),
        ),
    )
    graph = il.Graph("pair", (*t.values(), out), ops, ("x", "w1", "w2"), ("out",))
    found = Dependencies(graph)
    (link,) = found.links
    needed = found.find_tile_producers(link)
    producers = ops[0].compute_coords()
    for consumer, (image, block, _) in enumerate(ops[1].compute_coords()):
        read = list_rows(e, int(block) * rows[1], rows[1])
        expected = {
            tile
            for tile, (i, p, _) in enumerate(producers)
            if i == image and read & set(range(p * rows[0], (p + 1) * rows[0]))
        }
        assert {int(tile) - int(found.base[0]) for tile in needed[consumer]} == expected
    plan = il.build(graph, il.Schedule(2, policy=policy))
    assert il.verify(plan)
    per_block = int(ops[0].grid[2]) if isinstance(policy, il.TileSync) else 1
    posting = plan.items.op == 0
    assert len(np.unique(plan.items.post[posting])) == ops[0].grid[0] * ops[0].grid[1] * per_block


def test_chunk_of_channels_needs_only_its_channels_of_the_producer() -> None:
    graph = conv_chain(1, 6, 16, dtype=il.fp32, tile=Conv2DTile(1, 6, 8, 8))
    plan = il.build(graph, il.Schedule(2, policy=il.TileSync(), chunk_waits=True))
    waits = plan.waits
    second = np.flatnonzero(plan.items.op == 1)[0]
    rows = slice(waits.ptr[second], waits.ptr[second + 1])
    assert waits.k[rows].tolist() == [0, 8]
    assert waits.count[rows].tolist() == [1, 1]


@pytest.mark.parametrize("policy", [il.RowSync(), il.KernelSync(), il.BatchedRowSync(2)], ids=str)
def test_coarser_policies_run_right(policy: il.SyncPolicy) -> None:
    problem = ConvPair(16, 6, 3, il.fp32)
    inputs = problem.make_inputs(0)
    graph = problem.build_graph(il.CPU)
    right = problem.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})["out"]
    out = il.ReferenceExecutor(il.build(graph, il.Schedule(3, policy=policy)), seed=1).run(inputs)["out"]
    assert np.abs(out - right).max() < 1e-11


SHAPES = {"x": (2, 6, 7, 16), "weight": (8, 3, 3, 16), "out": (2, 4, 5, 8)}


def make(shapes: dict[str, tuple[int, ...]] | None = None, dtype: il.DType = il.fp32, **options: Any) -> il.Op:
    t = {name: il.Tensor(name, shape, dtype) for name, shape in (SHAPES | (shapes or {})).items()}
    return conv2d("conv", t.pop("x"), t.pop("weight"), t.pop("out"), **t, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        ({"x": (2, 6, 7, 12), "weight": (8, 3, 3, 12)}, {}, ShapeError, "12 input channels; pad them with zeros to"),
        ({"weight": (12, 3, 3, 16)}, {}, ShapeError, "12 output channels"),
        ({"weight": (8, 3, 3, 8)}, {}, ShapeError, "has 16 channels, and weight .* has 8"),
        ({"x": (6, 7, 16)}, {}, ShapeError, r"x x\[6 x 7 x 16\] fp32 must be \(images, H, W, C\)"),
        ({"weight": (8, 7, 3, 16)}, {}, ShapeError, "the kernel covers 7 rows, and the padded image has 6"),
        ({}, {"dilation": (1, 4)}, ShapeError, "the kernel covers 9 columns, and the padded image has 7"),
        ({}, {"stride": -1}, ShapeError, "stride -1; use 1 to"),
        ({}, {"stride": (1, 0)}, ShapeError, r"stride \(1, 0\); use 1 to"),
        ({}, {"padding": (0, -1)}, ShapeError, r"padding \(0, -1\); use 0 to"),
        ({}, {"padding": 1.5}, ArgumentError, "padding 1.5; use an int, or two"),
        ({}, {"dilation": (1, 1, 1)}, ArgumentError, "use an int, or two for height and width"),
        ({}, {"stride": True}, ArgumentError, "stride True; use an int"),
        ({}, {"groups": 2}, ArgumentError, "2 groups; use 1, or PyTorch for a grouped convolution"),
        ({"out": (2, 6, 7, 8)}, {}, ShapeError, r"out .* must have shape \(2, 4, 5, 8\)"),
        ({"bias": (16,)}, {}, ShapeError, r"bias .* must have shape \(8,\)"),
        ({"residual": (2, 4, 5, 16)}, {}, ShapeError, r"residual .* must have shape \(2, 4, 5, 8\)"),
        ({}, {"activation": il.Activation.SILU}, ArgumentError, "activation silu; convolutions support none and relu"),
        ({}, {"tile": Conv2DTile(2, 2, 8, 8)}, ShapeError, "a tile of 2 images has 2 of their 4 rows"),
        ({}, {"tile": il.MatmulTile()}, ArgumentError, "tile"),
    ],
)
def test_bad_input_gives_one_clear_line(
    shapes: dict[str, tuple[int, ...]], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as found:
        make(shapes, **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "positive numbers of images and rows"),
        ((1, 1, 12), "channels must be multiples of 8"),
        ((1, 1, 8, 0), "channels must be multiples of 8"),
    ],
)
def test_bad_tile_says_so(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Conv2DTile(*arguments)


def test_mixed_dtypes_are_rejected() -> None:
    x, w = il.Tensor("x", SHAPES["x"], il.bf16), il.Tensor("w", SHAPES["weight"], il.fp16)
    with pytest.raises(DTypeError, match="mixes dtypes"):
        conv2d("conv", x, w, il.Tensor("out", SHAPES["out"], il.bf16))


def test_plan_reads_back_and_a_forged_one_does_not() -> None:
    graph = conv_chain(2, 6, 16, tile=Conv2DTile(1, 2, 8, 8))
    text = il.build(graph, il.Schedule(2)).to_json()
    assert il.read_plan(text).graph == graph
    for name, value in (("PAD_H", 0), ("BM", 24), ("P", 5)):
        data = json.loads(text)
        data["graph"]["ops"][0]["params"][name] = value
        with pytest.raises((PlanFormatError, ParamError)):
            il.read_plan(json.dumps(data))


@pytest.mark.parametrize(
    ("conv", "message"),
    [
        (
            Convolution((1, 4, 300, 64), 64, (3, 3), padding=(1, 1)),
            "covers 300 input columns, and a bulk load brings 256",
        ),
        (
            Convolution((1, 32, 32, 64), 64, (3, 3), stride=(9, 9)),
            "stride (9, 9); bulk loads have strides of up to 8",
        ),
    ],
)
def test_megakernel_says_which_convolutions_it_cannot_load(conv: Convolution, message: str) -> None:
    reason = MegakernelExecutor.fallback_reason(conv.build_graph(dtype=il.bf16), H200)
    assert reason is not None
    assert message in reason


@pytest.mark.parametrize("channels", [64, 128, 512, 24])
@pytest.mark.parametrize(("edge", "images"), [(56, 1), (7, 32), (14, 5), (112, 2)])
def test_default_tilings_fit_the_megakernel_and_fill_the_device(channels: int, edge: int, images: int) -> None:
    graph = conv_chain(images, edge, channels)
    schedule = MegakernelExecutor.select_default(graph, H200)
    tiled = retile(graph, schedule.tiles)
    for op in tiled.ops:
        parts = schedule.get_op_tiling(op.name).parts
        build_tile(op, parts, max(1, int(op.param("num_warps")) // 4))
        assert parts * int(op.param("BK")) < channels + int(op.param("BK"))
    il.verify(il.build(graph, schedule))
    e = read_extents(tiled.ops[0])
    pixels = images * edge * edge
    if pixels * channels >= 132 * 64 * 64:  # as many tiles of 64 x 64 as SMs
        assert tiled.ops[0].tiles * schedule.get_op_tiling("conv1").parts >= 0.6 * H200.sms
    assert e.flops == 2.0 * pixels * channels * channels * 9


def test_small_images_are_split_along_channels_to_fill_the_device() -> None:
    graph = ConvPair.from_fields({"images": 1}, True, "resnet-512").build_graph(H200)
    (tiling, _) = MEGAKERNEL_TUNING.select_default(graph, H200).values()
    tiled = retile(graph, {"conv1": dict(tiling.params)})
    assert tiling.parts >= 4
    assert tiled.ops[0].tiles * tiling.parts >= 96


def test_pixel_tiles_are_whole_rows_or_whole_images() -> None:
    extents = ConvExtents(5, 7, 7, 64, 64, 3, 3, padding=(1, 1))
    assert list_pixel_tiles(extents, 256) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 7), (2, 7), (3, 7), (5, 7)]
    assert list_pixel_tiles(extents, 3) == [(1, 1)]


def test_cost_grows_with_work_and_shrinks_with_parts_of_idle_devices() -> None:
    small, large = (ConvExtents(n, 14, 14, 256, 256, 3, 3, padding=(1, 1)) for n in (1, 32))
    whole, split = ConvCandidate(Conv2DTile(1, 2), 1), ConvCandidate(Conv2DTile(1, 2), 4)
    assert estimate_seconds(large, whole, H200) > 2 * estimate_seconds(small, whole, H200)
    assert estimate_seconds(small, split, H200) < estimate_seconds(small, whole, H200)
