"""Pointwise arithmetic on a matrix: ``out = activation(x) * times + plus``, in float32, rounded once.

``times`` and ``plus`` are matrices like x, vectors of its columns that are broadcast over the rows, or omitted. One
op thus covers an addition, a product, a bias, a scale, a separate activation, and the product of a gate with its
input.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.arguments import check_sequence, check_type
from interlace.core.dtypes import FLOATS
from interlace.graph.access import Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_extents,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.elementwise.cuda import ELEMENTWISE_CUDA
from interlace.kernels.matmul import Activation

#: Upper bound of a tile: the bytes that an SM keeps in flight from memory, in 16-bit elements, since a worker
#: holds only two tiles. Lower bound of a tile, for matrices that would otherwise have fewer tiles than a GPU has SMs.
_MAX_TILE, _MIN_TILE, _ENOUGH_TILES = (32, 1024), (8, 256), 96
_WARP_ELEMENTS = 2048  # elements of a tile per warp, in Triton
_NONE = -1  # neither a matrix nor a vector
_ACTIVATIONS = [*Activation]  # bodies refer to an activation by its index


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    value = _ACTIVATIONS[int(params["ACTIVATION"])](regions["x"])
    return {"out": value * regions.get("times", 1.0) + regions.get("plus", 0.0)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.elementwise.triton import elementwise_tile

    return TritonBody(finish=elementwise_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    activation, tile = _ACTIVATIONS[int(params["ACTIVATION"])], (params["BM"], params["BN"])
    return elementwise(name, **tensors, activation=activation, tile=tile)  # type: ignore[arg-type]


ELEMENTWISE = Kernel(
    "elementwise",
    Reference(_finish),
    _build_triton_body,
    megakernel=ELEMENTWISE_CUDA,
    dtypes=FLOATS,
    make=_make,
)


def _select_tile(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of a tile of a matrix."""
    (bm, bn), (m, n) = _MAX_TILE, (*shape, 1, 1)[:2]
    while -(-m // bm) * -(-n // bn) < _ENOUGH_TILES and (bm, bn) != _MIN_TILE:
        bm, bn = (bm // 2, bn) if bm > _MIN_TILE[0] else (bm, bn // 2)
    return bm, bn


def elementwise(
    name: str,
    x: Tensor,
    out: Tensor,
    *,
    times: Tensor | None = None,
    plus: Tensor | None = None,
    activation: Activation = Activation.NONE,
    tile: tuple[int, int] | None = None,
) -> Op:
    """Return the op ``out = activation(x) * times + plus`` for x and out (M, N).

    Args:
        times, plus: factor and summand, (M, N), (N,), or None.
        tile: rows and columns of a tile, powers of two; by default the largest that gives most SMs a tile.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, mixed dtypes, or a
            tile that exceeds a Triton block.
    """
    where = f"op {name!r}"
    check_type(x, Tensor, where, "x")
    check_type(activation, Activation, where, "activation")
    tile = check_sequence(tile, int, where, "tile") if tile is not None else _select_tile(x.shape)
    check_block(where, *tile)
    bm, bn = tile
    require(
        bm == next_power_of_2(bm) and bn == next_power_of_2(bn), f"{where} has tiles of {bm} x {bn}; use powers of two"
    )
    require(len(x.shape) == 2, f"{where}: x {x} must be a matrix")
    m, n = x.shape
    check_argument(name, "out", out, (m, n))
    check_extents(where, x.shape, tile)
    i, j = axes(2)
    own = (i.block(bm), j.block(bn))
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {"x": (x, own)}
    rows = {"times": _NONE, "plus": _NONE}
    for arg, extra in (("times", times), ("plus", plus)):
        check_type(extra, (Tensor, type(None)), where, arg)
        if extra is not None:
            rows[arg] = int(extra.shape != (n,))
            check_argument(name, arg, extra, (m, n) if rows[arg] else (n,))
            reads[arg] = (extra, own if rows[arg] else own[1:])
    check_same_dtype(name, x, out, *(tensor for tensor, _ in reads.values()))
    return ELEMENTWISE.make_op(
        name,
        (-(-m // bm), -(-n // bn)),
        reads,
        {"out": (out, own)},
        params={
            "M": m,
            "N": n,
            "BM": bm,
            "BN": bn,
            "ACTIVATION": _ACTIVATIONS.index(activation),
            "TIMES_ROWS": rows["times"],
            "PLUS_ROWS": rows["plus"],
            "num_warps": min(16, max(4, next_power_of_2(bm * bn // _WARP_ELEMENTS))),
        },
        flops=float(bm * bn * len(reads)),
    )
