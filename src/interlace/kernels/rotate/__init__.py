"""Rotate heads of queries or keys to their positions (RoPE, ``kernels/rope``), after an RMS norm if the model has one.

Decode attention rotates its own query and key. In attention of a chunk of a prompt many tiles read the same key, so
heads of these rows are rotated once. The last rows of x are a chunk; with 3 rows before it and a chunk of 2:

    x     row 0  1  2  3  4
    out                0  1
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
from interlace.kernels.attend import check_capacity, check_heads
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_eps,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.rope import apply_rope

_HEADS = 4  # of a tile
_ROWS = 4, 8, 16  # of a tile: in the first, four warps have all heads in flight at once


def select_rows(chunk: int, heads: int, sms: int) -> int:
    """Return the rows of a tile: the fewest whose tiles are one wave, because a tile's heads come batch by batch."""
    waves = (rows for rows in _ROWS if -(-chunk // rows) * -(-heads // _HEADS) <= sms)
    return next(waves, _ROWS[-1])


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    d, rope = int(params["D"]), regions["rope"]
    at = np.clip(regions["position"], 0, len(rope) - 1).astype(np.int64)
    heads = regions["x"].reshape(len(at), -1, d)
    rows = [
        apply_rope(row, rope[n], regions.get("norm"), float(params["EPS"])) for row, n in zip(heads, at, strict=True)
    ]
    return {"out": np.stack(rows).reshape(len(at), -1)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.rotate.triton import rotate_tile

    return TritonBody(finish=rotate_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    more = {"tile_rows": params["BM"], "head_dim": params["D"], "eps": params["EPS"]}
    return rotate(name, **tensors, **more)  # type: ignore[arg-type]


_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/heads.cuh", "ops/rotate.cuh"),
    "rotate_tile",
    constants=("BM", "BH", "D", "EPS"),
    optional_args=("norm",),
    is_proved=True,
)

ROTATE = Kernel("rotate", Reference(_finish), _build_triton_body, megakernel=_CUDA, make=_make)


def rotate(
    name: str,
    x: Tensor,
    position: Tensor,
    rope: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    norm: Tensor | None = None,
    eps: float = 0.0,
    tile_rows: int = _ROWS[-1],
) -> Op:
    """Return the op that rotates the heads of the last rows of x.

    Args:
        x: heads, (R, heads * head_dim).
        position: position of each row in its sequence, (R,), int32.
        rope: cosines and sines by position, (capacity, head_dim) in float32; see ``kernels/rope``.
        out: rotated heads of the last C rows, (C, heads * head_dim).
        head_dim: elements of a head, a multiple of 8 of at least 16.
        norm: weight of the RMS norm of every head with ``eps``, (head_dim,).
        tile_rows: rows of a tile, a power of two; see ``select_rows``.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    for arg, tensor in (("x", x), ("rope", rope), ("out", out)):
        check_type(tensor, Tensor, f"op {name!r}", arg)
        require(len(tensor.shape) == 2, f"op {name!r}: {arg} {tensor} must have two dimensions")
    check_eps(name, eps)
    check_heads(name, head_dim, {"norm": norm})
    check_block(f"op {name!r}", tile_rows)
    require(
        tile_rows == next_power_of_2(tile_rows),
        f"op {name!r} has tiles of {tile_rows} rows; use a power of two",
    )
    (rows, wide), chunk = x.shape, out.shape[0]
    require(
        wide % head_dim == 0 and chunk <= rows,
        f"op {name!r}: x {x} must be (rows, heads * {head_dim}), with at least the rows of out {out}",
    )
    check_argument(name, "out", out, (chunk, wide))
    check_argument(name, "position", position, (rows,), int32)
    check_argument(name, "rope", rope, (rope.shape[0], head_dim), fp32)
    check_capacity(name, rope.shape[0])
    norms = {} if norm is None else {"norm": norm}
    check_same_dtype(name, x, out, *norms.values())
    base, heads = rows - chunk, wide // head_dim
    i, j = axes(2)
    row, column = i.block(tile_rows), j.block(_HEADS * head_dim)
    of = Span(row.lo + base, row.hi + base)
    return ROTATE.make_op(
        name,
        (-(-chunk // tile_rows), -(-heads // _HEADS)),
        {
            "x": (x, (of, column)),
            "position": (position, (of,)),
            "rope": (rope, (ALL, ALL)),
            **{arg: (tensor, (ALL,)) for arg, tensor in norms.items()},
        },
        {"out": (out, (row, column))},
        params={
            "ROWS": chunk,
            "BASE": base,
            "HEADS": heads,
            "CAPACITY": rope.shape[0],
            "D": head_dim,
            "BM": tile_rows,
            "BH": _HEADS,
            "EPS": eps,
            "num_warps": 4,
        },
    )
