"""Average pooling of channels-last images, as networks for images use it before their classifier.

    out[i, p, q, c] = mean over r < R, s < S of x[i, p * stride + r, q * stride + s, c]

x is (images, H, W, C) and out (images, P, Q, C): the memory of PyTorch's (images, C, H, W) in ``torch.channels_last``.
A window of all pixels makes it global average pooling. Images are not padded. Sums are kept in float32.
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

__all__ = ["AVG_POOL2D", "avg_pool2d"]

_CHANNEL_STEP, _MIN_BLOCK = 8, 16
_MAX_CHANNELS = 128  # of a tile: a warp loads them as pieces of 16 bytes, one a lane


def _finish(_: Array | None, regions: Regions, params: Params, tile: Sequence[int]) -> Mapping[str, Array]:
    get = {name: int(value) for name, value in params.items()}.__getitem__
    x, window = regions["x"], (get("R"), get("S"))
    rows = min(get("BP"), get("P") - tile[1] * get("BP"))
    value = np.zeros((len(x), rows, get("Q"), x.shape[3]))
    for r, s in np.ndindex(window):
        row, column = np.arange(rows) * get("STRIDE_H") + r, np.arange(get("Q")) * get("STRIDE_W") + s
        value += x[:, row][:, :, column]
    return {"out": value / (window[0] * window[1])}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.avg_pool2d.triton import avg_pool2d_tile

    return TritonBody(finish=avg_pool2d_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    get = {key: int(value) for key, value in params.items()}.__getitem__
    return avg_pool2d(
        name,
        **tensors,
        window=(get("R"), get("S")),
        stride=(get("STRIDE_H"), get("STRIDE_W")),
        tile=(get("BP"), get("BN")),
    )


_BODY = CudaBody(
    include("ops/rows.cuh", "ops/vectors.cuh", "ops/avg_pool2d.cuh"),
    "average_tile",
    constants=("R", "S", "BP", "BN"),
    is_proved=True,
)

AVG_POOL2D = Kernel(
    "avg_pool2d",
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=_BODY,
    dtypes=FLOATS,
    make=_make,
    tiling=("BP", "BN"),
)


def avg_pool2d(
    name: str,
    x: Tensor,
    out: Tensor,
    *,
    window: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    tile: tuple[int, int] = (1, 16),
) -> Op:
    """Return an average pooling op; shapes as in the module's docstring.

    Args:
        window, stride: along height and width, as one number or two; without a stride, windows do not overlap.
        tile: rows of output pixels, and channels (a power of two from 8 to 128).

    Raises:
        ArgumentError: an argument of another type.
        ShapeError: mismatched shapes, channels that are no multiple of 8, a window larger than the image, or a stride
            out of range.
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
    strides = windows if stride is None else read_pair(where, "stride", stride, 1)
    images, height, width, channels = x.shape
    require(
        windows[0] <= height and windows[1] <= width,
        f"{where}: windows of {windows} are larger than the image; use a larger image or smaller windows",
    )
    e = ConvExtents(images, height, width, channels, channels, *windows, strides)
    check_argument(name, "out", out, (images, e.out_rows, e.out_columns, channels))
    check_same_dtype(name, x, out)
    rows, features = read_pair(where, "tile", tile, 1)
    require(
        _CHANNEL_STEP <= features <= _MAX_CHANNELS and features & (features - 1) == 0,
        f"{where} has tiles of {features} channels; use a power of two from {_CHANNEL_STEP} to {_MAX_CHANNELS}",
    )
    block = max(_MIN_BLOCK, next_power_of_2(rows * e.out_columns))
    check_block(where, block, features)
    i, p, c = axes(3)
    first = p * (rows * strides[0])
    rows_in = Span(first, first + ((rows - 1) * strides[0] + windows[0]))
    end = (e.out_columns - 1) * strides[1] + windows[1]
    return AVG_POOL2D.make_op(
        name,
        (images, -(-e.out_rows // rows), -(-channels // features)),
        {"x": (x, (i.block(1), rows_in, constant_span(0, end), c.block(features)))},
        {"out": (out, (i.block(1), p.block(rows), constant_span(0, e.out_columns), c.block(features)))},
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
            "BP": rows,
            "BN": features,
            "BLOCK": block,
            "num_warps": 4,
        },
        flops=1.0 * windows[0] * windows[1] * rows * e.out_columns * features,
    )
