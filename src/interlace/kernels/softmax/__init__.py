"""Softmax of rows: y = exp(scale * (x - max(x))) / sum(exp(scale * (x - max(x)))), in float32.

Minus infinities yield 0 as long as the row has a finite number; a row without one yields NaN, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import e, inf, log2

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import FLOATS
from interlace.core.errors import ArgumentError
from interlace.csrc import include
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_same_dtype, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda.row_groups import build_row_body
from interlace.kernels.row_tiles import select_tile


def compute_softmax(x: Array, scale: float = 1.0) -> Array:
    """Return the softmax of scale * x along the last axis."""
    weights = np.exp(scale * (x - x.max(axis=-1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"out": compute_softmax(regions["x"], float(params["SCALE"]))}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.softmax.triton import softmax_tile

    return TritonBody(finish=softmax_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return softmax(name, **tensors, scale=params["SCALE"], rows=params["BM"])  # type: ignore[arg-type]


_TEXT = build_row_body(include("ops/softmax.cuh"))

SOFTMAX = Kernel("softmax", Reference(_finish), _build_triton_body, megakernel=_TEXT, dtypes=FLOATS, make=_make)


def softmax(name: str, x: Tensor, out: Tensor, *, scale: float = 1.0, rows: int = 1) -> Op:
    """Return the op that computes the softmax of scale * x over each row of x (M, N), in tiles of ``rows`` rows.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, a scale that is not positive,
            mismatched shapes, mixed dtypes, or rows that are not a power of two of at most 32.
    """
    check_type(x, Tensor, f"op {name!r}", "x")
    check_type(scale, float, f"op {name!r}", "scale", "0.125")
    if not 0 < float(scale) < inf:
        raise ArgumentError(f"op {name!r} has scale {scale!r}; use a positive number, such as 0.125")
    require(len(x.shape) == 2, f"op {name!r}: x {x} must be a matrix")
    m, n = x.shape
    check_argument(name, "out", out, (m, n))
    check_same_dtype(name, x, out)
    rows, block = select_tile(name, x.shape, rows)
    (i,) = axes(1)
    own = (i.block(rows), ALL)
    params = {"M": m, "N": n, "SCALE": float(scale), "EXPONENT": float(scale) * log2(e)}
    return SOFTMAX.make_op(
        name,
        (-(-m // rows),),
        {"x": (x, own)},
        {"out": (out, own)},
        params={**params, "BM": rows, "BN": block, "num_warps": 4},
        flops=5.0 * rows * n,
    )
