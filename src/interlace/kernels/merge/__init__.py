"""Merge the outputs of a token's experts: ``out[t] = sum_k weights[t, k] * y[place[t, k]]``.

Places that are not rows of y contribute 0. Sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.csrc import include
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_same_dtype, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda_body import CudaBody

_ROWS, _COLUMNS = 8, 512


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    y, place = regions["y"], regions["place"].astype(np.int64)
    there = (place >= 0) & (place < len(y))
    made = np.where(there[:, :, None], y[np.where(there, place, 0)], 0.0)
    return {"out": (regions["weights"][:, :, None] * made).sum(axis=1)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.merge.triton import merge_tile

    return TritonBody(finish=merge_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return merge(name, **tensors)


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: one row per pair."""
    i, j = axes(2)
    return {"y": (i.block(int(op.param("BM")) * int(op.param("CHOSEN"))), j.block(int(op.param("BN"))))}


_TEXT = CudaBody(
    include("ops/rows.cuh", "ops/vectors.cuh", "ops/merge.cuh"),
    "merge_tile",
    constants=("H", "CHOSEN", "BM", "BN"),
    is_proved=True,
)

MERGE = Kernel(
    "merge", Reference(_finish), _build_triton_body, megakernel=_TEXT, make=_make, expected_accesses=_expect_accesses
)


def merge(name: str, y: Tensor, place: Tensor, weights: Tensor, out: Tensor) -> Op:
    """Return the op that sums the rows ``place`` (T, chosen), int32, of y (R, H), times weights (T, chosen), into out
    (T, H).

    Weights are float32.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(y, Tensor, f"op {name!r}", "y")
    check_type(place, Tensor, f"op {name!r}", "place")
    require(
        len(y.shape) == len(place.shape) == 2, f"op {name!r}: y {y} must be (rows, H), and place {place} (T, chosen)"
    )
    (rows, h), (t, chosen) = y.shape, place.shape
    check_argument(name, "place", place, (t, chosen), int32)
    check_argument(name, "weights", weights, (t, chosen), fp32)
    check_argument(name, "out", out, (t, h))
    check_same_dtype(name, y, out)
    columns = min(_COLUMNS, next_power_of_2(h))
    check_block(f"op {name!r}", _ROWS, columns)
    i, j = axes(2)
    block, own = (i.block(_ROWS), ALL), j.block(columns)
    return MERGE.make_op(
        name,
        (-(-t // _ROWS), -(-h // columns)),
        {"y": (y, (ALL, own)), "place": (place, block), "weights": (weights, block)},
        {"out": (out, (i.block(_ROWS), own))},
        params={"T": t, "H": h, "R": rows, "CHOSEN": chosen, "BM": _ROWS, "BN": columns, "num_warps": 4},
        flops=2.0 * _ROWS * columns * chosen,
    )
