"""Layer normalisation of rows: y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias.

The mean is subtracted before squaring, in float32: sums of squares of rows far from 0 would cancel.
Source: Ba, Kiros and Hinton, Layer normalization, 2016.

It folds into adjacent products if weights are centred once (``centre_outputs``), and an RMS normalisation remains:

    layer_norm(x) @ weight.T + bias = rms_norm(x - mean(x)) @ weight.T + (bias + weight @ shift)

The mean of a row of x = y @ first.T is y @ mean(first). If the mean over outputs is subtracted from ``first``, rows of
x have mean 0, and the normalisation folds into both products as in ``kernels/folded_norm``. In a model in which every
reader of x normalises it, everything that writes x is centred: embeddings, biases, and the last weights of attention
and FFN. Source: Ashkboos et al., SliceGPT, 2024, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import FLOATS
from interlace.csrc import include
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_eps, check_same_dtype, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda.row_groups import build_row_body
from interlace.kernels.row_tiles import select_tile


def compute_layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """Normalise rows of x (..., n) to mean 0 and variance 1, times ``weight`` (n,), plus ``bias`` (n,)."""
    off = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(off / np.sqrt((off**2).mean(axis=-1, keepdims=True) + eps) * weight + bias)


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"out": compute_layer_norm(regions["x"], regions["weight"], regions["bias"], float(params["EPS"]))}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.layer_norm.triton import layer_norm_tile

    return TritonBody(finish=layer_norm_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return layer_norm(name, **tensors, eps=params["EPS"], rows=params["BM"])  # type: ignore[arg-type]


_TEXT = build_row_body(include("ops/layer_norm.cuh"))

LAYER_NORM = Kernel(
    "layer_norm",
    Reference(_finish),
    _build_triton_body,
    megakernel=_TEXT,
    dtypes=FLOATS,
    make=_make,
)


def layer_norm(name: str, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, eps: float, rows: int = 1) -> Op:
    """Return the op that normalises each row of x (M, N), times weight (N,), plus bias (N,), in tiles of ``rows``
    rows.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, mixed dtypes, or
            rows that are not a power of two of at most 32.
    """
    check_type(x, Tensor, f"op {name!r}", "x")
    check_eps(name, eps)
    require(len(x.shape) == 2, f"op {name!r}: x {x} must be a matrix")
    m, n = x.shape
    check_argument(name, "weight", weight, (n,))
    check_argument(name, "bias", bias, (n,))
    check_argument(name, "out", out, (m, n))
    check_same_dtype(name, x, weight, bias, out)
    rows, block = select_tile(name, x.shape, rows)
    (i,) = axes(1)
    own = (i.block(rows), ALL)
    return LAYER_NORM.make_op(
        name,
        (-(-m // rows),),
        {"x": (x, own), "weight": (weight, (ALL,)), "bias": (bias, (ALL,))},
        {"out": (out, own)},
        params={"M": m, "N": n, "EPS": float(eps), "BM": rows, "BN": block, "num_warps": 4},
        flops=8.0 * rows * n,
    )


def centre_outputs(weight: Any) -> Any:
    """Subtract the mean over outputs from weights (N, K) or a bias (N,), so that their outputs have rows of mean 0.

    For an embedding (V, N), or for data, pass the transpose. Takes NumPy or PyTorch arrays, preferably in float32.
    """
    return weight - weight.mean(0)


def fold_shift(weight: Any, shift: Any, bias: Any = None) -> Any:
    """Return the bias (N,) after weights (N, K) that replaces the normalisation's own shift (K,)."""
    return weight @ shift if bias is None else weight @ shift + bias
