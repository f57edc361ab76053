"""Block-sparse matmul: the weight is a BSR matrix (block compressed sparse row), whose table is data on the device.

    out[m, n] = x[m, k] @ weight[n, k].T

    blocks    (count, bn, bk)    nonzero blocks of the weight, by block rows
    columns   (count,)           block column of each block
    rows      (n / bn + 1,)      first block of each block row, then count (CSR pointers)

Worked example, a weight of 4 x 6 in blocks of 2 x 2, of which A to D are nonzero:

    A . B        columns   0 2 1 2
    . C D        rows      0 2 4

A tile is rows of x by one block row or an equal part of it, and its reduction runs over the blocks of that row. Their
number and their columns are data, so the access map declares that a tile may read any block and all of its rows of x.
Sums are kept in float32.

Nothing is read out of bounds, whatever a table contains:

- A block whose column is out of range is multiplied by zeros.
- A block row begins at its pointer or at block 0, and ends before the next pointer or the last block. If that leaves no
  block, its columns of ``out`` become 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import int32
from interlace.core.errors import DTypeError
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_extents, check_same_dtype, require
from interlace.kernels.block_sparse.cuda import BlockSparseBodies
from interlace.kernels.block_sparse.tiles import NAME, TILING, select_tile
from interlace.kernels.block_sparse.tuning import MEGAKERNEL_TUNING
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.matmul.tile import MatmulTile


def _finish(_: Array | None, regions: Regions, params: Params, coords: tuple[int, ...]) -> Mapping[str, Array]:
    x, blocks, columns, rows = (regions[name] for name in ("x", "blocks", "columns", "rows"))
    (count, height, depth), bn = blocks.shape, int(params["BN"])
    row, offset = divmod(coords[1] * bn, height)
    first, end = max(int(rows[row]), 0), min(int(rows[row + 1]), count)
    out = np.zeros((len(x), bn))
    for block in range(first, end):
        column = int(columns[block])
        known = 0 <= column < x.shape[1] // depth
        part = x[:, column * depth : (column + 1) * depth] if known else np.zeros((len(x), depth))
        out += part @ blocks[block, offset : offset + bn].T
    return {"out": out}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.block_sparse.triton import block_sparse_matmul_tile

    return TritonBody(finish=block_sparse_matmul_tile, check=check_triton)


def check_triton(op: Op) -> None:
    """Raise ShapeError unless an op's extents (from 16 on) and warps are powers of two, as Triton requires."""
    warps = int(op.param("num_warps"))
    extents = int(op.param("BM")), int(op.param("BN")), min(int(op.param("BK")), int(op.param("DEPTH")))
    require(
        warps & (warps - 1) == 0 and all(extent >= 16 and extent & (extent - 1) == 0 for extent in extents),
        f"op {op.name!r}: tile of {' x '.join(map(str, extents))} for {warps} warps: Triton's extents must be powers "
        "of two of at least 16; use such a tile, or the one_launch executor",
    )


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = MatmulTile(*(params[param] for param in TILING))  # type: ignore[arg-type]
    return block_sparse_matmul(name, **tensors, tile=tile)


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: equal numbers of blocks in all block rows, and columns spread evenly over x.

    Numbers of blocks are rounded up, so the last tiles of a row of tiles read fewer blocks; all together read each
    block once.
    """
    i, j = axes(2)
    n, k, count, height, depth, bm, bn = (
        int(op.param(name)) for name in ("N", "K", "BLOCKS", "HEIGHT", "DEPTH", "BM", "BN")
    )
    size = -(-count * bn // n)
    wide = min(k, -(-count * height // n) * depth)
    along = (k - wide) // max(1, op.grid[1] - 1)
    return {
        "x": (i.block(bm), Span(along * j, along * j + wide)),
        "blocks": (j.block(size), ALL, ALL),
        "columns": (j.block(size),),
    }


BLOCK_SPARSE_MATMUL = Kernel(
    NAME,
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=BlockSparseBodies(),
    make=_make,
    tiling=TILING,
    tunings={BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
    expected_accesses=_expect_accesses,
)


def block_sparse_matmul(
    name: str,
    x: Tensor,
    blocks: Tensor,
    columns: Tensor,
    rows: Tensor,
    out: Tensor,
    *,
    tile: MatmulTile | None = None,
) -> Op:
    """Return the op that multiplies by a block-sparse weight; see the module.

    Args:
        x: rows, (M, K).
        blocks: nonzero blocks, (count, bn, bk); bn divides N, and bk divides K.
        columns: block column of each block, (count,), int32.
        rows: first block of each block row, (N / bn + 1,), int32.
        out: products, (M, N).
        tile: tile extents. n divides bn; k divides bk or is a multiple of it; ``swap_ab`` and ``prefetch_bytes`` are
            not supported.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    for argument, tensor in (("x", x), ("blocks", blocks), ("columns", columns), ("rows", rows), ("out", out)):
        check_type(tensor, Tensor, where, argument)
    check_type(tile, (MatmulTile, type(None)), where, "tile", "il.MatmulTile(m, n, k)")
    require(
        (len(x.shape), len(blocks.shape), len(out.shape)) == (2, 3, 2),
        f"{where}: x {x} must be (M, K), blocks {blocks} (count, bn, bk), and out {out} (M, N)",
    )
    (m, k), (count, height, depth), n = x.shape, blocks.shape, out.shape[1]
    require(
        n % height == 0 and k % depth == 0,
        f"{where}: a weight of {n} x {k} is not divided by blocks of {height} x {depth}; use blocks that divide it",
    )
    check_argument(name, "columns", columns, (count,), int32)
    check_argument(name, "rows", rows, (n // height + 1,), int32)
    check_argument(name, "out", out, (m, n))
    if not check_same_dtype(name, x, blocks, out).is_floating_point:
        raise DTypeError(f"{where}: x {x} must be of floating-point numbers")
    tile = tile or select_tile(m, height, depth)
    what = f"{where}: tile of {tile.m} x {tile.n} x {tile.k} on blocks of {height} x {depth}"
    require(not (tile.swap_ab or tile.prefetch_bytes), f"{what} swaps or prefetches, which this op does not support")
    require(height % tile.n == 0, f"{what}: use an n that divides {height}")
    require(depth % tile.k == 0 or tile.k % depth == 0, f"{what}: use a k that divides {depth} or is a multiple of it")
    check_extents(where, (m, count * height, max(k, count * depth)), (tile.m, tile.n, tile.k))
    i, j = axes(2)
    row = i.block(tile.m)
    return BLOCK_SPARSE_MATMUL.make_op(
        name,
        (-(-m // tile.m), n // tile.n),
        {
            "x": (x, (row, ALL)),
            "blocks": (blocks, (ALL, ALL, ALL)),
            "columns": (columns, (ALL,)),
            "rows": (rows, (ALL,)),
        },
        {"out": (out, (row, j.block(tile.n)))},
        params={
            "M": m,
            "N": n,
            "K": k,
            "BLOCKS": count,
            "HEIGHT": height,
            "DEPTH": depth,
            **{param: value for param, value in tile.params if param in TILING},
        },
        flops=2.0 * tile.m * tile.n * depth * count * height / n,
    )
