"""Argmax of each row, in two ops: over tiles of columns, then over the results of the tiles.

Ties go to the first column.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.argmax.cuda import BLOCK_ARGMAX_CUDA, REDUCE_ARGMAX_CUDA
from interlace.kernels.base import Kernel, check_argument, check_block, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody

#: Lower and upper bound of the columns of a tile of the first op.
COLUMNS, _WIDEST = 2048, 16384
_WAVES = 2  # waves of tiles


def select_columns(rows: int, columns: int, sms: int) -> int:
    """Return the columns of a tile: a power of two that makes about two waves, since each wave of tiles costs time."""
    tiles = max(1, _WAVES * sms // rows)
    return max(COLUMNS, min(next_power_of_2(-(-columns // tiles)), _WIDEST))


def _compute_block_argmax(
    _: Array | None, regions: Regions, params: Params, where: tuple[int, ...]
) -> Mapping[str, Array]:
    at = regions["x"].argmax(axis=1, keepdims=True)
    best = np.take_along_axis(regions["x"], at, axis=1)
    return {"best": best, "at": where[1] * int(params["BN"]) + at}


def _compute_argmax(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    which = regions["best"].argmax(axis=1, keepdims=True)
    return {"out": np.take_along_axis(regions["at"], which, axis=1)[:, 0]}


def _build_block_body() -> TritonBody:
    from interlace.kernels.argmax.triton import most_tile

    return TritonBody(finish=most_tile)


def _build_reduce_body() -> TritonBody:
    from interlace.kernels.argmax.triton import first_tile

    return TritonBody(finish=first_tile)


def _make_block(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return block_argmax(name, **tensors, columns=params["BN"])  # type: ignore[arg-type]


def _make_reduce(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return reduce_argmax(name, **tensors)


BLOCK_ARGMAX = Kernel(
    "most",
    Reference(_compute_block_argmax, needs_coords=True),
    _build_block_body,
    megakernel=BLOCK_ARGMAX_CUDA,
    make=_make_block,
)
REDUCE_ARGMAX = Kernel(
    "reduce_argmax", Reference(_compute_argmax), _build_reduce_body, megakernel=REDUCE_ARGMAX_CUDA, make=_make_reduce
)


def block_argmax(name: str, x: Tensor, best: Tensor, at: Tensor, columns: int = COLUMNS) -> Op:
    """Return the op that finds the maximum of every ``columns`` columns of x (B, N), and its column.

    ``best`` (B, ceil(N / columns)) is float32, ``at`` of the same shape is int32. ``columns`` is a power of two.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(x, Tensor, f"op {name!r}", "x")
    require(len(x.shape) == 2, f"op {name!r}: x {x} must be a matrix")
    check_block(f"op {name!r}", columns)
    require(columns == next_power_of_2(columns), f"op {name!r} has tiles of {columns} columns; use a power of two")
    b, n = x.shape
    tiles = -(-n // columns)
    check_argument(name, "best", best, (b, tiles), fp32)
    check_argument(name, "at", at, (b, tiles), int32)
    i, j = axes(2)
    one = (i.block(1), j.block(1))
    return BLOCK_ARGMAX.make_op(
        name,
        (b, tiles),
        {"x": (x, (i.block(1), j.block(columns)))},
        {"best": (best, one), "at": (at, one)},
        params={"N": n, "BN": columns, "TILES": tiles, "num_warps": 4},
        flops=float(columns),
    )


def reduce_argmax(name: str, best: Tensor, at: Tensor, out: Tensor) -> Op:
    """Return the op that reduces the results of ``block_argmax`` to the column of each row's maximum.

    ``out`` is (B,), int32.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(best, Tensor, f"op {name!r}", "best")
    require(len(best.shape) == 2, f"op {name!r}: best {best} must be a matrix")
    b, tiles = best.shape
    check_argument(name, "best", best, (b, tiles), fp32)
    check_argument(name, "at", at, (b, tiles), int32)
    check_argument(name, "out", out, (b,), int32)
    block = next_power_of_2(tiles)
    check_block(f"op {name!r}", block)
    (i,) = axes(1)
    row = (i.block(1), ALL)
    return REDUCE_ARGMAX.make_op(
        name,
        (b,),
        {"best": (best, row), "at": (at, row)},
        {"out": (out, (i.block(1),))},
        params={"TILES": tiles, "BN": block, "num_warps": 1},
        flops=float(tiles),
    )
