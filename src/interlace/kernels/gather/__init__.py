"""Gather rows of a matrix: ``out[r] = x[token[r]]``, zeros where the index is out of range."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import int32
from interlace.csrc import include
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_same_dtype, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda_body import CudaBody

_ROWS, _COLUMNS = 16, 1024  # upper bounds of a tile's extents
_TILES = 16  # number of tiles below which they have fewer rows: a tile takes as long as its loads, one after another


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    x, token = regions["x"], regions["token"].astype(np.int64)
    there = (token >= 0) & (token < len(x))
    return {"out": np.where(there[:, None], x[np.where(there, token, 0)], 0.0)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.gather.triton import gather_tile

    return TritonBody(finish=gather_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return gather(name, **tensors)


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: rows distributed evenly over the tiles."""
    i, j = axes(2)
    first = i * (int(op.param("T")) // op.grid[0])
    return {"x": (Span(first, first + int(op.param("BM"))), j.block(int(op.param("BN"))))}


_TEXT = CudaBody(
    include("ops/rows.cuh", "ops/gather.cuh"),
    "gather_tile",
    constants=("BM", "BN"),
    is_proved=True,
)

GATHER = Kernel(
    "gather", Reference(_finish), _build_triton_body, megakernel=_TEXT, make=_make, expected_accesses=_expect_accesses
)


def gather(name: str, x: Tensor, token: Tensor, out: Tensor) -> Op:
    """Return the op that gathers the rows ``token`` (R,), int32, of x (T, H) into out (R, H).

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(x, Tensor, f"op {name!r}", "x")
    check_type(token, Tensor, f"op {name!r}", "token")
    require(
        len(x.shape) == 2 and len(token.shape) == 1, f"op {name!r}: x {x} must be a matrix, and token {token} a vector"
    )
    (t, h), (rows,) = x.shape, token.shape
    check_argument(name, "token", token, (rows,), int32)
    check_argument(name, "out", out, (rows, h))
    check_same_dtype(name, x, out)
    columns = min(_COLUMNS, next_power_of_2(h))
    across = -(-h // columns)
    own_rows = next_power_of_2(min(_ROWS, max(1, rows * across // _TILES)))
    check_block(f"op {name!r}", own_rows, columns)
    i, j = axes(2)
    row, own = i.block(own_rows), j.block(columns)
    return GATHER.make_op(
        name,
        (-(-rows // own_rows), across),
        {"x": (x, (ALL, own)), "token": (token, (row,))},
        {"out": (out, (row, own))},
        params={"T": t, "H": h, "R": rows, "BM": own_rows, "BN": columns, "num_warps": 4},
    )
