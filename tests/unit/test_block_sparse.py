"""Block-sparse products: the reference, access maps, tiles by the estimate, and what is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import ArgumentError, DTypeError, PlanError, PlanFormatError, ShapeError
from interlace.kernels.block_sparse import block_sparse_matmul, select_tile
from interlace.kernels.block_sparse.tiles import TILING, estimate_s, iter_tiles
from interlace.kernels.read_plan import read_plan
from interlace.kernels.spin import spin
from interlace.planner.retile import retile
from interlace.workloads import BlockSparse
from interlace.workloads.block_sparse import block_sparse

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TILE = il.MatmulTile(16, 16, 16)


def make_op(change: dict[str, Any] | None = None, tile: il.MatmulTile | None = TILE) -> il.Op:
    """Return the op over a weight of 96 x 64 in 5 blocks of 32 x 16, with other shapes or dtypes of some tensors."""
    shapes: dict[str, Any] = {"x": (20, 64), "blocks": (5, 32, 16), "columns": (5,), "rows": (4,), "out": (20, 96)}
    dtypes = {name: il.int32 if name in ("columns", "rows") else il.bf16 for name in shapes}
    for name, value in (change or {}).items():
        (dtypes if isinstance(value, il.DType) else shapes)[name] = value
    return block_sparse_matmul("p", **{n: il.Tensor(n, s, dtypes[n]) for n, s in shapes.items()}, tile=tile)


def test_tables_mean_blocks_by_rows_and_entries_out_of_range_mean_zeros() -> None:
    x, size = np.eye(96), 16
    blocks = np.arange(1, 6)[:, None, None] * np.ones((5, size, size))
    graph = block_sparse(96, 64, 96, 5, size, il.fp32, tile=TILE)
    executor = il.ReferenceExecutor(il.build(graph, il.Schedule(3)))

    def compute_weight(columns: list[int], rows: list[int]) -> list[list[int]]:
        out = executor.run({"x": x, "blocks": blocks, "columns": np.array(columns), "rows": np.array(rows)})["out"]
        weight = out.T.reshape(4, size, 6, size)
        assert (weight == weight[:, :1, :, :1]).all()
        return [[int(value) for value in row] for row in weight[:, 0, :, 0]]

    right = [[1, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0], [0, 0, 4, 0, 0, 5]]
    assert compute_weight([0, 3, 1, 2, 5], [0, 2, 2, 3, 5]) == right
    right[0], right[3] = [0] * 6, [0, 0, 0, 0, 0, 5]
    assert compute_weight([-1, 6, 1, 1 << 28, 5], [-7, 2, 2, 3, 1 << 30]) == right
    assert compute_weight([0, 3, 1, 2, 5], [4, 2, 1, 5, 3]) == [  # rows that end before they begin, and that overlap
        [0] * 6,
        [0] * 6,
        [0, 3, 4, 2, 0, 5],
        [0] * 6,
    ]


def test_access_maps_cover_any_table_and_are_expected_to_read_an_equal_share() -> None:
    op = make_op()
    assert op.grid == (2, 6)
    assert [str(access) for access in op.reads] == [
        "x: x[16*t0 : 16*t0 + 16, :]",
        "blocks: blocks[:, :, :]",
        "columns: columns[:]",
        "rows: rows[:]",
    ]
    work = BlockSparse.from_fields({"m": 256}, True)
    graph = work.build_graph(il.H200)
    product = graph.op("product")
    reads = {access.arg: access for access in product.substitute_expected(product.reads)}
    coords = product.compute_coords()
    none = np.zeros(len(coords), np.int64)

    def count_elements(argument: str) -> np.ndarray:
        low, high = reads[argument].compute_bounds(graph.tensor(argument).shape, coords, none, none)
        return np.prod(high - low, axis=1)

    share = int(np.ceil(work.count / 112))  # blocks of a block row
    assert (work.count, share) == (717, 7)
    blocks = count_elements("blocks").reshape(product.grid) / 128**2
    assert (blocks[0, 0], blocks.sum(axis=1).tolist()) == (7, [717] * product.grid[0])
    assert set(count_elements("x")) == {int(product.param("BM")) * 7 * 128}
    last = reads["x"].compute_bounds(graph.tensor("x").shape, coords, none, none)[1].max(axis=0)
    assert last[1] > 4096 - 128  # all of x is read by some tile
    assert product.flops * product.tiles == pytest.approx(work.flops)


def test_plans_are_read_again_and_others_than_the_kernel_makes_are_refused() -> None:
    plan = il.build(BlockSparse.from_fields({}, False).build_graph(il.CPU), il.Schedule(4))
    assert read_plan(plan.to_json()).to_json() == plan.to_json()
    data = json.loads(plan.to_json())
    data["graph"]["ops"][0]["params"]["DEPTH"] = 16
    with pytest.raises(PlanFormatError, match=r"'product' has param DEPTH 16, but .* makes an op with 32"):
        read_plan(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "tile", "error", "message"),
    [
        ({"x": (20,)}, TILE, ShapeError, r"x .* must be \(M, K\), blocks .* \(count, bn, bk\), and out .* \(M, N\)"),
        ({"out": (20, 90)}, TILE, ShapeError, "a weight of 90 x 64 is not divided by blocks of 32 x 16"),
        ({"x": (20, 60)}, TILE, ShapeError, "a weight of 96 x 60 is not divided by blocks of 32 x 16"),
        ({"columns": (4,)}, TILE, ShapeError, r"columns .* must have shape \(5,\)"),
        ({"rows": (3,)}, TILE, ShapeError, r"rows .* must have shape \(4,\)"),
        ({"out": (21, 96)}, TILE, ShapeError, r"out .* must have shape \(20, 96\)"),
        ({"rows": il.fp32}, TILE, DTypeError, "rows .* must be int32"),
        ({"x": il.fp16}, TILE, DTypeError, "mixes dtypes"),
        (dict.fromkeys(("x", "blocks", "out"), il.int32), TILE, DTypeError, "floating-point"),
        ({}, il.MatmulTile(16, 64, 16), ShapeError, "blocks of 32 x 16: use an n that divides 32"),
        ({}, il.MatmulTile(16, 16, 24), ShapeError, "use a k that divides 16 or is a multiple of it"),
        ({}, il.MatmulTile(16, 16, 16, swap_ab=True), ShapeError, "swaps or prefetches, which this op does not"),
        ({}, 16, ArgumentError, "tile"),
    ],
)
def test_what_does_not_go_together_is_refused(
    change: dict[str, Any], tile: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_op(change, tile)


def test_a_weight_that_blocks_do_not_divide_and_tensors_that_are_none_are_refused() -> None:
    with pytest.raises(ShapeError, match="a weight of 100 x 64 is not divided by blocks of 16 x 16"):
        BlockSparse(100, 64, 16, 50)
    with pytest.raises(ShapeError, match="a weight of 64 x 100 is not divided by blocks of 16 x 16"):
        block_sparse(8, 64, 100, 5, 16)
    x = il.Tensor("x", (16, 64), il.bf16)
    with pytest.raises(ArgumentError, match="op 'p': blocks is None"):
        block_sparse_matmul("p", x, None, x, x, x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block", "dtype", "tile", "error", "message"),
    [
        (32, il.bf16, None, ShapeError, "blocks are 32 deep, and bulk loads bring panels of 64; use blocks of a mult"),
        (64, il.fp32, None, DTypeError, "the megakernel multiplies bf16 and fp16"),
        (64, il.bf16, il.MatmulTile(16, 32, 64), ShapeError, "multiply 64 rows each at a time, and the tile has 32"),
        (64, il.bf16, il.MatmulTile(16, 64, 32), ShapeError, "a stage is a multiple of 64 deep"),
    ],
)
def test_what_the_megakernel_does_not_take_is_refused_in_one_line(
    block: int, dtype: il.DType, tile: il.MatmulTile | None, error: type[Exception], message: str
) -> None:
    graph = block_sparse(16, 128, 128, 3, block, dtype, tile=tile)
    with pytest.raises(error, match=message):
        il.MegakernelExecutor(il.build(graph, il.Schedule(3)), il.RunOptions("meta"))


def test_a_weight_that_a_later_op_writes_is_not_loaded_ahead() -> None:
    graph = block_sparse(16, 128, 128, 1, 64)
    t = {tensor.name: tensor for tensor in graph.tensors}
    given = il.Tensor("given", (1,), il.int32)
    ops = (*graph.ops, spin("write", given, t["columns"]))
    updated = il.Graph("updated", (given, *graph.tensors), ops, (*graph.inputs, "given"), ("out", "columns"))
    with pytest.raises(
        PlanError, match=r"'product' loads columns 'columns' ahead of every wait, but op 'write' writes"
    ):
        il.MegakernelExecutor(il.build(updated, il.Schedule(3)), il.RunOptions("meta"))


@pytest.mark.parametrize("height", [16, 32, 48, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("m", [1, 16, 40, 300])
def test_every_offered_tile_leaves_the_megakernel_a_ring(m: int, height: int) -> None:
    graph = build_graph(m, height)
    tiles = [*iter_tiles(graph.op("product"))]
    assert len(tiles) >= 2
    for tile in tiles:
        params = {name: value for name, value in tile.params if name in TILING}
        il.MegakernelExecutor.check_tiles(retile(graph, {"product": params}), il.H200)


def build_graph(m: int, height: int) -> il.Graph:
    shapes = {"x": (m, 512), "blocks": (5, height, 64), "columns": (5,), "rows": (17,), "out": (m, 16 * height)}
    t = {n: il.Tensor(n, s, il.int32 if n in ("columns", "rows") else il.bf16) for n, s in shapes.items()}
    op = block_sparse_matmul("product", **t)
    return il.Graph("product", (*t.values(),), (op,), tuple(shapes)[:-1], ("out",))


def test_few_rows_have_narrow_tiles_and_many_rows_tall_ones() -> None:
    def choose(m: int) -> tuple[Any, ...]:
        graph = BlockSparse.from_fields({"m": m}, True).build_graph(il.H200)
        tile = il.MegakernelExecutor.select_default(graph, il.H200).tiles["product"]
        return tile["BM"], tile["BN"], tile["BK"], tile["num_warps"]

    assert [choose(m) for m in (1, 16, 256, 4096)] == [
        (8, 64, 128, 4),
        (16, 64, 128, 4),
        (128, 128, 64, 8),
        (256, 128, 64, 8),
    ]
    op = BlockSparse.from_fields({"m": 4096}, True).build_graph(il.H200).op("product")
    tall, small = (estimate_s(op, il.MatmulTile(m, 128, 64), il.bf16, il.H200) for m in (256, 64))
    assert tall < 0.7 * small


@pytest.mark.parametrize(
    ("m", "height", "depth", "tile"),
    [
        (5, 128, 128, (16, 128, 64)),
        (300, 64, 64, (128, 64, 64)),
        (5, 32, 64, (64, 32, 64)),  # 64 rows of x where a block has fewer
        (5, 32, 32, (16, 32, 32)),
        (5, 48, 80, (16, 16, 16)),
    ],
)
def test_the_default_tile_divides_blocks_by_powers_of_two(
    m: int, height: int, depth: int, tile: tuple[int, int, int]
) -> None:
    found = select_tile(m, height, depth)
    assert (found.m, found.n, found.k) == tile


def test_tables_of_the_workload_are_valid_and_as_sparse_as_asked() -> None:
    work = BlockSparse.from_fields({}, True, "zeros-95")
    assert work.count == 180  # of 112 x 32
    assert work.flops == 2 * 16 * 180 * 128 * 128
    given = work.make_host_inputs(0)
    columns, rows = (given[name].astype(int) for name in ("columns", "rows"))
    assert (rows[0], rows[-1], len(rows)) == (0, 180, 113)
    places = np.repeat(np.arange(112), np.diff(rows)) * 32 + columns
    assert (np.diff(places) > 0).all()
    assert columns.max() < 32
    assert not np.array_equal(columns, work.make_host_inputs(1)["columns"])


def test_what_pytorch_is_timed_with_multiplies_by_the_same_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("block_sparse")
    assert [case.name for case in script.CASES][:4] == ["zeros-50:16", "zeros-50:256", "zeros-50:4096", "zeros-80:16"]
    work = BlockSparse(160, 128, 32, 70, 5, il.fp32)
    tensors = {name: torch.from_numpy(value) for name, value in work.make_inputs(0).items()}
    rest = {name: value for name, value in tensors.items() if name != "blocks"}
    sets = [{"blocks": tensors["blocks"]}, {"blocks": tensors["blocks"].roll(1, 0)}]
    problem = SimpleNamespace(workload=work, rest=rest, weights=sets)
    for make, store in (
        (script.make_linear, script.store_bsr),
        (script.make_product, script.store_bsr),
        (script.make_linear, script.store_dense),
    ):
        for own, stored in zip(sets, store(problem), strict=True):
            right = work.run_dense(torch, {**rest, **own})["out"]
            torch.testing.assert_close(make(problem)({**rest, **stored})["out"], right, rtol=1e-5, atol=1e-5)
