"""Root mean square normalisation of rows (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_eps, power_of_two, require, same_dtype
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.rms_norm.cuda import RMS_NORM_TEXT


def normalised(x: Array, weight: Array, eps: float) -> Array:
    """x of shape (..., n) with rows of root mean square 1, times ``weight`` (n,)."""
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight)


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"out": normalised(regions["x"], regions["weight"], float(params["EPS"]))}


def _triton() -> TritonBody:
    from interlace.kernels.rms_norm.triton import rms_norm_tile

    return TritonBody(finish=rms_norm_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return rms_norm(name, **tensors, eps=params["EPS"])  # type: ignore[arg-type]


RMS_NORM = Kernel("rms_norm", Reference(_finish), _triton, walk=RMS_NORM_TEXT, make=_make)


def rms_norm(name: str, x: Tensor, weight: Tensor, out: Tensor, eps: float) -> Op:
    """``out``, each row of x (B, H) normalised and times weight (H,); a tile is a row.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument that is none, shapes that do not match, mixed dtypes.
    """
    check_type(x, Tensor, f"op {name!r}", "x")
    check_eps(name, eps)
    require(len(x.shape) == 2, f"op {name!r}: x {x} must be a matrix")
    b, h = x.shape
    check_argument(name, "weight", weight, (h,))
    check_argument(name, "out", out, (b, h))
    same_dtype(name, x, weight, out)
    block = power_of_two(h)
    check_block(f"op {name!r}", block)
    (i,) = axes(1)
    row = (i.block(1), ALL)
    return RMS_NORM.op(
        name,
        (b,),
        {"x": (x, row), "weight": (weight, (ALL,))},
        {"out": (out, row)},
        params={"H": h, "EPS": eps, "BN": block, "num_warps": 4 if block <= 2048 else 8},
        flops=4.0 * h,
    )
