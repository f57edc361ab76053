"""Copy of a matrix, tile by tile."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.arguments import check_int, check_sequence, check_type
from interlace.csrc import include
from interlace.graph.access import axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_block, check_extents, check_same_dtype, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda_body import CudaBody


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"y": regions["x"]}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.copy.triton import copy_tile

    return TritonBody(finish=copy_tile, check=_check_powers)


def _check_powers(op: Op) -> None:
    """Raise ShapeError unless the extents of the op's tile are powers of two, as Triton requires of blocks."""
    extents = [int(op.param(name)) for name in ("BM", "BN")]
    require(
        all(extent & (extent - 1) == 0 for extent in extents),
        f"op {op.name!r}: tile of {' x '.join(map(str, extents))}: Triton's extents must be powers of two; use such a "
        "tile, or the reference executor",
    )


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return copy(name, **tensors, tile=(params["BM"], params["BN"]), num_warps=params["num_warps"])  # type: ignore[arg-type]


_TEXT = CudaBody(
    include("ops/copy.cuh"),
    "copy_tile",
    constants=("BM", "BN"),
    is_proved=True,
)

COPY = Kernel("copy", Reference(_finish), _build_triton_body, megakernel=_TEXT, make=_make)


def copy(name: str, x: Tensor, y: Tensor, tile: tuple[int, int] = (64, 64), num_warps: int = 4) -> Op:
    """Return the op ``y = x`` for matrices of equal shape and dtype.

    Raises:
        ArgumentError: an argument of another type.
        ShapeError, DTypeError: different shapes or dtypes, or a tile that exceeds a Triton block.
        ParamError: ``num_warps`` that no launch supports.
    """
    for arg, tensor in (("x", x), ("y", y)):
        check_type(tensor, Tensor, f"op {name!r}", arg)
    tile = check_sequence(tile, int, f"op {name!r}", "tile")
    require(len(tile) == 2, f"op {name!r} has tile {tile}; use two extents")
    check_block(f"op {name!r}", *tile)
    check_int(num_warps, f"op {name!r}", "num_warps")
    require(
        len(x.shape) == 2 and x.shape == y.shape,
        f"op {name!r} copies {x} to {y}; both must be matrices of one shape",
    )
    check_same_dtype(name, x, y)
    check_extents(f"op {name!r}", x.shape, tile)
    (m, n), (bm, bn) = x.shape, tile
    i, j = axes(2)
    spans = (i.block(bm), j.block(bn))
    return COPY.make_op(
        name,
        (-(-m // bm), -(-n // bn)),
        {"x": (x, spans)},
        {"y": (y, spans)},
        params={"M": m, "N": n, "BM": bm, "BN": bn, "num_warps": num_warps},
    )
