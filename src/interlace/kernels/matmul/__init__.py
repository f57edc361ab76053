"""Matmul with the epilogues of a transformer.

    out = activation(x @ weight.T + bias) + residual
    out = silu(x @ gate.T) * (x @ weight.T) + residual          (gated)

x is (M, K), weights are (N, K) as ``nn.Linear`` stores them, out and residual (M, N), bias (N,). Sums are kept in
float32. Any M, N, K are supported; the last tile of each is masked.

RMS normalisation before and after the matmul is folded in (``kernels/folded_norm``). With ``x_squares``, products are
multiplied by the factors of their rows before any other epilogue. With ``x_scale``, x is also scaled, and the squares
are computed from x itself. With ``scale``, out is also written to ``scaled`` (scaled) and ``squares`` (its sums of
squares).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import FLOATS
from interlace.core.errors import DTypeError
from interlace.graph.access import ALL, Affine, K, Span, axes
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Tensor
from interlace.kernels import gelu
from interlace.kernels.base import Kernel, check_eps, check_extents, check_same_dtype, require
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.folded_norm import check_folded_outputs, compute_rms_factors, find_squared_columns, sum_squares
from interlace.kernels.matmul.megakernel_body import MEGAKERNEL_BODY
from interlace.kernels.matmul.megakernel_tuning import MEGAKERNEL_TUNING
from interlace.kernels.matmul.tile import TILING, MatmulTile
from interlace.kernels.matmul.tilings import (
    NAME,
    X_WHOLE,
    can_prescale,
    check_powers,
    count_partial_elements,
    normalises,
)
from interlace.kernels.matmul.triton_tuning import TRITON_TUNING

__all__ = ["MATMUL", "Activation", "MatmulTile", "matmul"]


class Activation(Enum):
    """Pointwise function of the epilogue."""

    NONE = "none"
    RELU = "relu"
    GELU_TANH = "gelu-tanh"
    SILU = "silu"

    def __call__(self, x: Array) -> Array:
        """Apply the function to a NumPy array."""
        if self is Activation.RELU:
            return np.maximum(x, 0.0)
        if self is Activation.GELU_TANH:
            inner = gelu.SCALE * (x + gelu.CUBIC * x**3)
            return np.asarray(0.5 * x * (1 + np.tanh(inner)))
        if self is Activation.SILU:
            return np.asarray(x / (1 + np.exp(-x)))
        return x


def _accumulate(regions: Regions, params: Params) -> Array:
    x = regions["x"] * regions["x_scale"] if "x_scale" in regions else regions["x"]
    sums = [x @ regions[w].T for w in ("weight", "gate") if w in regions]
    return np.stack(sums)


def _finish(acc: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    assert acc is not None
    if "x_squares" in regions:
        acc = acc * compute_rms_factors(regions["x_squares"], int(params["K"]), float(params["EPS"]))
    if X_WHOLE in regions:
        acc = acc * compute_rms_factors(regions[X_WHOLE] ** 2, int(params["K"]), float(params["EPS"]))
    value = acc[0]
    if "bias" in regions:
        value = value + regions["bias"]
    if len(acc) == 2:
        value = Activation.SILU(acc[1]) * value
    else:
        value = Activation(params["ACTIVATION"])(value)
    if "residual" in regions:
        value = value + regions["residual"]
    if "scale" not in regions:
        return {"out": value}
    kept = {"out": value} if params.get("KEPT", True) else {}
    return {**kept, "scaled": value * regions["scale"], "squares": sum_squares(value, int(params["SQUARED"]))}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.matmul.triton import matmul_accumulate, matmul_finish, matmul_prefetch

    return TritonBody(
        matmul_finish, matmul_accumulate, matmul_prefetch, count_partial_elements, is_chunked=True, check=check_powers
    )


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = MatmulTile(*(params[name] for name in TILING))  # type: ignore[arg-type]
    activation, eps = Activation(params["ACTIVATION"]), params.get("EPS")
    tensors = {argument: tensor for argument, tensor in tensors.items() if argument != X_WHOLE}
    return matmul(name, **tensors, activation=activation, eps=eps, tile=tile)  # type: ignore[arg-type]


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access of ``x_whole``: almost none, as x's rows are already in the tile or the L2."""
    return {X_WHOLE: (Span(Affine(0), Affine(1)),) * 2} if normalises(op) else {}


MATMUL = Kernel(
    NAME,
    Reference(_finish, _accumulate),
    _build_triton_body,
    megakernel=MEGAKERNEL_BODY,
    dtypes=FLOATS,
    make=_make,
    tiling=TILING,
    tunings={BodyKind.TRITON: TRITON_TUNING, BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
    expected_accesses=_expect_accesses,
)


def matmul(
    name: str,
    x: Tensor,
    weight: Tensor,
    out: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: Activation = Activation.NONE,
    x_squares: Tensor | None = None,
    x_scale: Tensor | None = None,
    eps: float | None = None,
    scale: Tensor | None = None,
    scaled: Tensor | None = None,
    squares: Tensor | None = None,
    tile: MatmulTile | None = None,
) -> Op:
    """Return a matmul op; shapes as in the module's docstring, one dtype throughout except for sums of squares.

    Args:
        out: output; may be omitted if ``scaled`` and ``squares`` are given.
        x_squares: sums of squares of x before it was scaled, (M, ceil(K / 64)) or (M, ceil(K / 16)) in float32; its
            rows are normalised, with ``eps``.
        x_scale: scale (K,), an alternative to ``x_squares``: unscaled rows of x are normalised, with ``eps``, and
            multiplied by it. Each tile repeats this work, so it pays off for few tokens or short rows. The megakernel
            supports it if K is a multiple of 64, in tiles of fewer than 64 weight rows, or without ``swap_ab``. Not
            supported in fp16, where x times the scale may overflow although the normalised row does not.
        scale, scaled, squares: all or none: a scale (N,) that is read; out times the scale (M, N), and sums of
            squares of out, (M, ceil(N / 64)) or (M, ceil(N / 16)) in float32, which are written.

    Raises:
        ArgumentError: an argument of another type, such as a name for an activation.
        ShapeError: mismatched shapes, a gate combined with a bias or with an activation other than SiLU, an
            incomplete group of arguments, or a tile that cuts a sum of squares.
        DTypeError: mixed dtypes, or an unsupported dtype.
    """
    result = scaled if out is None else out  # of the same shape
    for arg, tensor in (("x", x), ("weight", weight), ("out", result)):
        check_type(tensor, Tensor, f"op {name!r}", arg)
    for arg, extra in (("gate", gate), ("bias", bias), ("residual", residual)):
        check_type(extra, (Tensor, type(None)), f"op {name!r}", arg)
    folded = {"scale": scale, "scaled": scaled, "squares": squares, "x_squares": x_squares, "x_scale": x_scale}
    for arg, extra in folded.items():
        check_type(extra, (Tensor, type(None)), f"op {name!r}", arg)
    check_type(activation, Activation, f"op {name!r}", "activation")
    if eps is not None:
        check_eps(name, eps)
    check_type(tile, (MatmulTile, type(None)), f"op {name!r}", "tile", "il.MatmulTile(m, n, k)")
    tile = tile or MatmulTile()
    assert result is not None
    require(
        len(x.shape) == len(weight.shape) == len(result.shape) == 2,
        f"op {name!r}: x, weight and out must be matrices, got {x}, {weight}, {result}",
    )
    (m, k), n = x.shape, weight.shape[0]
    require(
        weight.shape == (n, k) and result.shape == (m, n),
        f"op {name!r} computes {result} from {x} and {weight}; weight must be (N, K) for x (M, K) and out (M, N), "
        "as nn.Linear stores it",
    )
    require(gate is None or gate.shape == (n, k), f"op {name!r}: gate {gate} must have the shape of {weight}")
    require(bias is None or bias.shape == (n,), f"op {name!r}: bias {bias} must have shape ({n},)")
    require(
        residual is None or residual.shape == (m, n),
        f"op {name!r}: residual {residual} must have shape ({m}, {n})",
    )
    require(
        gate is None or (activation is Activation.SILU and bias is None),
        f"op {name!r}: a gated matmul is silu(gate) * up without bias; pass activation=SILU and bias=None",
    )
    squared = 0
    given = (x_squares is not None) + (x_scale is not None)
    require(given == (eps is not None), f"op {name!r}: give eps and one of x_squares and x_scale, or none of them")
    require(x_scale is None or x_scale.shape == (k,), f"op {name!r}: x_scale {x_scale} must have shape ({k},)")
    require(
        x_scale is None or scale is None,
        f"op {name!r} has both x_scale and scale; let the op that writes {x} leave it scaled, with its squares",
    )
    if x_squares is not None:
        squared = find_squared_columns(name, "x_squares", x_squares, m, k)
    leaves = check_folded_outputs(name, result, scale, scaled, squares, tile.n)
    if leaves is not None:
        require(
            x_squares is None or leaves[3] == squared,
            f"op {name!r}: squares are of {leaves[3]} columns, and x_squares of {squared}; use one number for both",
        )
        squared = leaves[3]
    if x_scale is not None and not can_prescale(x.dtype):
        raise DTypeError(
            f"op {name!r} scales {x} before it divides by its root mean square, which may overflow in {x.dtype}; use "
            "rms_norm before it"
        )
    check_extents(f"op {name!r}", (m, n, k), (tile.m, tile.n, tile.k))
    optional = [t for t in (gate, bias, residual, x_scale) if t is not None]
    check_same_dtype(name, x, weight, result, *optional)
    i, j = axes(2)
    rows, columns = i.block(tile.m), j.block(tile.n)
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "x": (x, (rows, K)),
        "weight": (weight, (columns, K)),
    }
    if gate is not None:
        reads["gate"] = (gate, (columns, K))
    if bias is not None:
        reads["bias"] = (bias, (columns,))
    if residual is not None:
        reads["residual"] = (residual, (rows, columns))
    if x_squares is not None:
        reads["x_squares"] = (x_squares, (rows, ALL))
    if x_scale is not None:
        reads |= {"x_scale": (x_scale, (K,)), X_WHOLE: (x, (rows, ALL))}
    writes: dict[str, tuple[Tensor, tuple[Span, ...]]] = {} if out is None else {"out": (out, (rows, columns))}
    if leaves is not None:
        reads["scale"] = (leaves[0], (columns,))
        writes |= {"scaled": (leaves[1], (rows, columns)), "squares": (leaves[2], (rows, j.block(tile.n // leaves[3])))}
    return MATMUL.make_op(
        name,
        (-(-m // tile.m), -(-n // tile.n)),
        reads,
        writes,
        reduction=Reduction(k, tile.k),
        flops=2.0 * tile.m * tile.n * k * (2 if gate is not None else 1),
        params={
            "M": m,
            "N": n,
            "K": k,
            "ACTIVATION": activation.value,
            **({} if eps is None else {"EPS": eps}),
            **({"SQUARED": squared} if squared else {}),
            **({"KEPT": False} if out is None else {}),
            **dict(tile.params),
        },
    )
