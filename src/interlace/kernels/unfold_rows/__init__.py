"""Taps of a row as channels, so that a first layer of few channels fills the tensor cores' operands.

    out[i, h, q, s * C + c] = x[i, h, q * stride - padding + s * dilation, c]

x is (images, H, W, C), or (images, C, H, W) without ``channels_last``: a batch of images as callers have it. out is
(images, H, Q, C * taps rounded up to a multiple of 8). Pixels outside of x and further channels are zeros. 7 taps of 3
channels, stride 2, padding 3:

    x (1, 224, 224, 3)  -->  out (1, 224, 112, 24)    21 channels and 3 of zeros

So a convolution of R by S taps becomes one of R by 1 taps, with its stride, padding and dilation along the height only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from interlace.core.arguments import check_int, check_type
from interlace.core.dtypes import FLOATS
from interlace.csrc import include
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.conv2d.tile import ConvExtents
from interlace.kernels.cuda_body import CudaBody

__all__ = ["UNFOLD_ROWS", "unfold_rows"]

_CHANNEL_STEP, _MIN_BLOCK = 8, 16
_MAX_EXTENT = 1 << 20  # bound of stride, padding and dilation, so that columns stay within 32 bits


def _finish(_: Array | None, regions: Regions, params: Params, tile: Sequence[int]) -> Mapping[str, Array]:
    get = {name: int(value) for name, value in params.items()}.__getitem__
    x = regions["x"] if get("CHANNELS_LAST") else np.moveaxis(regions["x"], 1, 3)
    images, rows, width, channels = x.shape
    value = np.zeros((images, rows, get("Q"), get("WIDTH")))
    for s in range(get("TAPS")):
        column = np.arange(get("Q")) * get("STRIDE") - get("PAD") + s * get("DILATION")
        inside = (column >= 0) & (column < width)
        value[:, :, inside, s * channels : (s + 1) * channels] = x[:, :, column[inside]]
    return {"out": value}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.unfold_rows.triton import unfold_rows_tile

    return TritonBody(finish=unfold_rows_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    get = {key: int(value) for key, value in params.items()}.__getitem__
    return unfold_rows(
        name,
        **tensors,
        taps=get("TAPS"),
        stride=get("STRIDE"),
        padding=get("PAD"),
        dilation=get("DILATION"),
        channels_last=bool(get("CHANNELS_LAST")),
        rows=get("BP"),
    )


_BODY = CudaBody(
    include("ops/rows.cuh", "ops/vectors.cuh", "ops/unfold_rows.cuh"),
    "unfold_tile",
    constants=("C", "TAPS", "WIDTH", "CHANNELS_LAST"),
    is_proved=True,
)

UNFOLD_ROWS = Kernel(
    "unfold_rows",
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=_BODY,
    dtypes=FLOATS,
    make=_make,
    tiling=("BP",),
)


def unfold_rows(
    name: str,
    x: Tensor,
    out: Tensor,
    *,
    taps: int,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    channels_last: bool = True,
    rows: int = 1,
) -> Op:
    """Return an op that makes channels of the taps of a row; shapes as in the module's docstring.

    Args:
        taps, stride, padding, dilation: those of a convolution along the width.
        channels_last: True if x is (images, H, W, C), False if it is (images, C, H, W).
        rows: rows of an image in a tile.

    Raises:
        ArgumentError: an argument of another type.
        ShapeError: mismatched shapes, taps that cover more than the padded row, or a number out of range.
        DTypeError: mixed dtypes, or an unsupported dtype.
    """
    where = f"op {name!r}"
    check_type(x, Tensor, where, "x")
    check_type(out, Tensor, where, "out")
    check_type(channels_last, bool, where, "channels_last")
    taps, rows, stride, dilation = (
        _check_extent(where, what, value, 1)
        for what, value in (("taps", taps), ("rows", rows), ("stride", stride), ("dilation", dilation))
    )
    padding = _check_extent(where, "padding", padding, 0)
    require(len(x.shape) == 4, f"{where}: x {x} must be (images, H, W, C), or (images, C, H, W) if not channels_last")
    images, height, width, channels = x.shape if channels_last else (x.shape[0], *x.shape[2:], x.shape[1])
    e = ConvExtents(images, height, width, channels, 0, 1, taps, (1, stride), (0, padding), (1, dilation))
    require(
        e.reach[1] <= width + 2 * padding,
        f"{where}: {taps} taps cover {e.reach[1]} columns, and the padded row has {width + 2 * padding}; use wider "
        "images or more padding",
    )
    depth = -(-channels * taps // _CHANNEL_STEP) * _CHANNEL_STEP
    check_argument(name, "out", out, (images, height, e.out_columns, depth))
    check_same_dtype(name, x, out)
    block = max(_MIN_BLOCK, next_power_of_2(rows * e.out_columns))
    check_block(where, block, next_power_of_2(depth))
    i, p = axes(2)
    image, band = i.block(1), p.block(rows)
    return UNFOLD_ROWS.make_op(
        name,
        (images, -(-height // rows)),
        {"x": (x, (image, band, ALL, ALL) if channels_last else (image, ALL, band, ALL))},
        {"out": (out, (image, band, ALL, ALL))},
        params={
            "H": height,
            "W": width,
            "C": channels,
            "Q": e.out_columns,
            "TAPS": taps,
            "STRIDE": stride,
            "PAD": padding,
            "DILATION": dilation,
            "WIDTH": depth,
            "CHANNELS_LAST": int(channels_last),
            "BP": rows,
            "BLOCK": block,
            "DEPTH": next_power_of_2(depth),
            "num_warps": 4,
        },
        flops=1.0 * rows * e.out_columns * depth,
    )


def _check_extent(where: str, what: str, value: object, least: int) -> int:
    number = check_int(value, where, what)
    require(least <= number <= _MAX_EXTENT, f"{where} has {what} {number}; use {least} to {_MAX_EXTENT}")
    return number
