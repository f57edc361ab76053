"""Max-pooling of channels-last images: ``out[i, p, q, c]`` is the maximum of x over a window, NaN if one of them is.

    window    rows p * stride - padding to p * stride - padding + R - 1, columns likewise

x is (images, H, W, C), out is (images, P, Q, C), as in ``kernels/conv2d``. Pixels outside of x do not count; a padding
is at most half of the window, so that each window has one inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import FLOATS
from interlace.csrc import include
from interlace.graph.access import Span, axes, constant_span
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_same_dtype, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.conv2d.tile import ConvExtents, read_pair
from interlace.kernels.cuda_body import CudaBody

__all__ = ["MAX_POOL2D", "max_pool2d"]

_CHANNEL_STEP, _MIN_BLOCK = 8, 16


def _finish(_: Array | None, regions: Regions, params: Params, tile: Sequence[int]) -> Mapping[str, Array]:
    get = {name: int(value) for name, value in params.items()}.__getitem__
    x = regions["x"]
    first_row = tile[1] * get("BP")
    rows = min(get("BP"), get("P") - first_row)
    top = first_row * get("STRIDE_H") - get("PAD_H")
    first_in = min(max(top, 0), get("H"))
    value = np.full((len(x), rows, get("Q"), x.shape[3]), -np.inf)
    for r in range(get("R")):
        row = np.clip(np.arange(rows) * get("STRIDE_H") + top + r, 0, get("H") - 1) - first_in
        for s in range(get("S")):
            column = np.clip(np.arange(get("Q")) * get("STRIDE_W") - get("PAD_W") + s, 0, get("W") - 1)
            value = np.maximum(value, x[:, row][:, :, column])
    return {"out": value}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.max_pool2d.triton import max_pool2d_tile

    return TritonBody(finish=max_pool2d_tile, check=_check_powers)


def _check_powers(op: Op) -> None:
    """Raise ShapeError unless the channels of an op's tile are a power of two, as Triton requires."""
    channels = int(op.param("BN"))
    require(
        channels & (channels - 1) == 0,
        f"op {op.name!r}: tile of {channels} channels: Triton's extents must be powers of two; use such a tile",
    )


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    get = {key: int(value) for key, value in params.items()}.__getitem__
    return max_pool2d(
        name,
        **tensors,
        window=(get("R"), get("S")),
        stride=(get("STRIDE_H"), get("STRIDE_W")),
        padding=(get("PAD_H"), get("PAD_W")),
        tile=(get("BP"), get("BN")),
    )


_BODY = CudaBody(
    include("ops/rows.cuh", "ops/vectors.cuh", "ops/max_pool2d.cuh"),
    "pool_tile",
    constants=("R", "S", "BP", "BN"),
    is_proved=True,
)

MAX_POOL2D = Kernel(
    "max_pool2d",
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=_BODY,
    dtypes=FLOATS,
    make=_make,
    tiling=("BP", "BN"),
)


def max_pool2d(
    name: str,
    x: Tensor,
    out: Tensor,
    *,
    window: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    tile: tuple[int, int] = (1, 64),
) -> Op:
    """Return a max-pooling op; shapes as in the module's docstring.

    Args:
        window, stride, padding: along height and width, as one number or two; without a stride, windows do not overlap.
        tile: rows of output pixels, and channels (a multiple of 8).

    Raises:
        ArgumentError: an argument of another type.
        ShapeError: mismatched shapes, channels that are no multiple of 8, a window larger than the padded image, or a
            stride or a padding out of range.
        DTypeError: mixed dtypes, or an unsupported dtype.
    """
    where = f"op {name!r}"
    check_type(x, Tensor, where, "x")
    check_type(out, Tensor, where, "out")
    require(len(x.shape) == 4, f"{where}: x {x} must be (images, H, W, C)")
    require(
        x.shape[3] % _CHANNEL_STEP == 0,
        f"{where} has {x.shape[3]} channels; pad them to a multiple of {_CHANNEL_STEP}",
    )
    windows = read_pair(where, "window", window, 1)
    paddings = read_pair(where, "padding", padding, 0)
    strides = windows if stride is None else read_pair(where, "stride", stride, 1)
    require(
        all(2 * pad <= size for pad, size in zip(paddings, windows, strict=True)),
        f"{where} has padding {paddings} and windows of {windows}; use a padding of at most half of the window",
    )
    images, height, width, channels = x.shape
    e = ConvExtents(images, height, width, channels, channels, *windows, strides, paddings)
    require(
        windows[0] <= height + 2 * paddings[0] and windows[1] <= width + 2 * paddings[1],
        f"{where}: windows of {windows} are larger than the padded image; use a larger image or smaller windows",
    )
    shape = images, e.out_rows, e.out_columns, channels
    check_argument(name, "out", out, shape)
    check_same_dtype(name, x, out)
    rows, features = read_pair(where, "tile", tile, 1)
    require(
        features % _CHANNEL_STEP == 0, f"{where} has tiles of {features} channels; use a multiple of {_CHANNEL_STEP}"
    )
    block = max(_MIN_BLOCK, next_power_of_2(rows * e.out_columns))
    check_block(where, block, next_power_of_2(features))
    i, p, c = axes(3)
    first = p * (rows * strides[0]) - paddings[0]
    rows_in = Span(first, first + ((rows - 1) * strides[0] + windows[0]))
    end = (e.out_columns - 1) * strides[1] + windows[1] - paddings[1]
    own = i.block(1), p.block(rows), constant_span(0, e.out_columns), c.block(features)
    return MAX_POOL2D.make_op(
        name,
        (images, -(-e.out_rows // rows), -(-channels // features)),
        {"x": (x, (i.block(1), rows_in, constant_span(0, min(end, width)), c.block(features)))},
        {"out": (out, own)},
        params={
            "H": height,
            "W": width,
            "C": channels,
            "P": e.out_rows,
            "Q": e.out_columns,
            "R": windows[0],
            "S": windows[1],
            "STRIDE_H": strides[0],
            "STRIDE_W": strides[1],
            "PAD_H": paddings[0],
            "PAD_W": paddings[1],
            "BP": rows,
            "BN": features,
            "BLOCK": block,
            "num_warps": 4,
        },
        flops=1.0 * windows[0] * windows[1] * rows * e.out_columns * features,
    )
