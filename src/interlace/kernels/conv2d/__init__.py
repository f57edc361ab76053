"""2-D convolution of channels-last images, as networks for images use it at inference.

    out[i, p, q, n] = act(sum over r, s, c of x[i, p * stride - padding + r * dilation, q * ..., c] * weight[n, r, s, c]
                          + bias[n] + residual[i, p, q, n])

x is (images, H, W, C) and weight (N, R, S, C): the memory of PyTorch's (images, C, H, W) and (N, C, R, S) in
``torch.channels_last``. out and residual are (images, P, Q, N), bias is (N,). Pixels outside of x are zeros. The
activation is none or ReLU and comes last, as in a residual network; a batch norm is folded into weight and bias.
Sums are kept in float32.

The reduction of an op runs over channels, each chunk with all taps; so access maps are exact boxes, and a split or a
wait inside the reduction needs only its channels of the producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from interlace.core.arguments import check_type, format_value
from interlace.core.dtypes import FLOATS
from interlace.core.errors import ArgumentError
from interlace.graph.access import ALL, K, Span, axes, constant_span
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_extents, check_same_dtype, require
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.conv2d.megakernel_body import MEGAKERNEL_BODY
from interlace.kernels.conv2d.tile import (
    NAME,
    TILING,
    Conv2DTile,
    ConvExtents,
    count_block_elements,
    count_block_pixels,
    read_pair,
)
from interlace.kernels.conv2d.tuning import MEGAKERNEL_TUNING, TRITON_TUNING
from interlace.kernels.matmul import Activation

__all__ = ["CONV2D", "Conv2DTile", "ConvExtents", "conv2d"]

_CHANNEL_STEP = 8


def _accumulate(regions: Regions, params: Params) -> Array:
    """Return the products of every input pixel with every tap, (images, rows, W, N, R, S); ``_finish`` shifts them."""
    return np.asarray(np.tensordot(regions["x"], regions["weight"], axes=([3], [3])), np.float64)


def _finish(acc: Array | None, regions: Regions, params: Params, tile: Sequence[int]) -> Mapping[str, Array]:
    assert acc is not None
    get = {name: int(value) for name, value in params.items() if name != "ACTIVATION"}.__getitem__
    images, rows_in, columns_in, channels = acc.shape[:4]
    first_row = tile[1] * get("TILE_ROWS")
    rows = min(get("TILE_ROWS"), get("P") - first_row)
    top = first_row * get("STRIDE_H") - get("PAD_H")  # input row of the first output row and tap
    first_in = min(max(top, 0), get("H"))
    value = np.zeros((images, rows, get("Q"), channels))
    for r in range(get("R")):
        row = np.arange(rows) * get("STRIDE_H") + top + r * get("DILATION_H") - first_in
        has_row = (row >= 0) & (row < rows_in)
        for s in range(get("S")):
            column = np.arange(get("Q")) * get("STRIDE_W") - get("PAD_W") + s * get("DILATION_W")
            has_column = (column >= 0) & (column < columns_in)
            part = acc[..., r, s][:, row[has_row]][:, :, column[has_column]]
            value[np.ix_(range(images), has_row, has_column)] += part
    if "bias" in regions:
        value = value + regions["bias"]
    if "residual" in regions:
        value = value + regions["residual"]
    return {"out": Activation(params["ACTIVATION"])(value)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.conv2d.triton import conv2d_accumulate, conv2d_finish

    return TritonBody(
        conv2d_finish, conv2d_accumulate, partial_elements=count_block_elements, is_chunked=True, check=_check_powers
    )


def _check_powers(op: Op) -> None:
    """Raise ShapeError unless the extents and warps of an op's tile are powers of two, as Triton requires."""
    extents = [int(op.param(name)) for name in ("BN", "BK")]
    require(
        all(extent >= 16 and extent & (extent - 1) == 0 for extent in extents),
        f"op {op.name!r}: tile of {extents[0]} output channels in chunks of {extents[1]}: Triton's extents must be "
        "powers of two of at least 16; use such a tile, or the one_launch executor",
    )


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = Conv2DTile(*(params[name] for name in TILING))  # type: ignore[arg-type]

    def pair(name: str) -> tuple[int, int]:
        return params[f"{name}_H"], params[f"{name}_W"]  # type: ignore[return-value]

    return conv2d(
        name,
        **tensors,  # type: ignore[arg-type]
        activation=Activation(params["ACTIVATION"]),
        stride=pair("STRIDE"),
        padding=pair("PAD"),
        dilation=pair("DILATION"),
        tile=tile,
    )


CONV2D = Kernel(
    NAME,
    Reference(_finish, _accumulate, needs_coords=True),
    _build_triton_body,
    megakernel=MEGAKERNEL_BODY,
    dtypes=FLOATS,
    make=_make,
    tiling=TILING,
    tunings={BodyKind.TRITON: TRITON_TUNING, BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
)


def conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: Activation = Activation.NONE,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    tile: Conv2DTile | None = None,
) -> Op:
    """Return a convolution op; shapes as in the module's docstring, one dtype throughout.

    Args:
        activation: none or ReLU; comes after the residual.
        stride, padding, dilation: along height and width, as one number or two.
        groups: 1; grouped convolutions are not supported.

    Raises:
        ArgumentError: an argument of another type, groups, or an activation other than ReLU.
        ShapeError: mismatched shapes, channels that are no multiple of 8, a kernel larger than the padded image, or a
            stride, padding or dilation out of range.
        DTypeError: mixed dtypes, or an unsupported dtype.
    """
    where = f"op {name!r}"
    for arg, tensor in (("x", x), ("weight", weight), ("out", out)):
        check_type(tensor, Tensor, where, arg)
    for arg, extra in (("bias", bias), ("residual", residual)):
        check_type(extra, (Tensor, type(None)), where, arg)
    check_type(activation, Activation, where, "activation")
    check_type(tile, (Conv2DTile, type(None)), where, "tile", "il.Conv2DTile(images, rows, n, k)")
    if activation not in (Activation.NONE, Activation.RELU):
        raise ArgumentError(f"{where} has activation {activation.value}; convolutions support none and relu")
    if type(groups) is not int or groups != 1:
        raise ArgumentError(f"{where} has {format_value(groups)} groups; use 1, or PyTorch for a grouped convolution")
    extents = _read_shapes(name, x, weight, stride, padding, dilation)
    shape = extents.images, extents.out_rows, extents.out_columns, extents.out_channels
    check_argument(name, "out", out, shape)
    if bias is not None:
        check_argument(name, "bias", bias, (extents.out_channels,))
    if residual is not None:
        check_argument(name, "residual", residual, shape)
    tile = tile or Conv2DTile.heuristic(extents)
    require(
        tile.images == 1 or tile.rows == extents.out_rows,
        f"{where}: a tile of {tile.images} images has {tile.rows} of their {extents.out_rows} rows; use all rows, or "
        "one image",
    )
    check_extents(where, shape, (tile.images, tile.rows, 0, tile.n))
    optional = {"bias": bias, "residual": residual}
    given = {arg: tensor for arg, tensor in optional.items() if tensor is not None}
    check_same_dtype(name, x, weight, out, *given.values())
    i, p, n = axes(3)
    (stride_h, _), (pad_h, pad_w) = extents.stride, extents.padding
    reach_h, reach_w = extents.reach
    images, rows, features = i.block(tile.images), p.block(tile.rows), n.block(tile.n)
    first = p * (tile.rows * stride_h) - pad_h
    rows_in = Span(first, first + ((tile.rows - 1) * stride_h + reach_h))
    end = (extents.out_columns - 1) * extents.stride[1] + reach_w - pad_w
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "x": (x, (images, rows_in, constant_span(0, max(0, min(end, extents.width))), K)),
        "weight": (weight, (features, ALL, ALL, K)),
    }
    pixels = images, rows, ALL, features
    reads |= {arg: (tensor, (features,) if arg == "bias" else pixels) for arg, tensor in given.items()}
    block = tile.count_pixels(extents)
    return CONV2D.make_op(
        name,
        (-(-shape[0] // tile.images), -(-shape[1] // tile.rows), -(-shape[3] // tile.n)),
        reads,
        {"out": (out, pixels)},
        reduction=Reduction(extents.channels, tile.k),
        flops=2.0 * block * tile.n * extents.channels * extents.taps,
        params={
            **dict(zip(("IMAGES", "H", "W", "C", "N", "R", "S"), _list_extents(extents), strict=True)),
            **dict(zip(("STRIDE_H", "STRIDE_W"), extents.stride, strict=True)),
            **dict(zip(("PAD_H", "PAD_W"), extents.padding, strict=True)),
            **dict(zip(("DILATION_H", "DILATION_W"), extents.dilation, strict=True)),
            "P": shape[1],
            "Q": shape[2],
            "ACTIVATION": activation.value,
            "PIXELS": block,
            "BLOCK": count_block_pixels(block),
            "BM": tile.pad_pixels(extents),
            **dict(tile.params),
        },
    )


def _list_extents(extents: ConvExtents) -> tuple[int, ...]:
    e = extents
    return e.images, e.height, e.width, e.channels, e.out_channels, e.taps_h, e.taps_w


def _read_shapes(
    name: str,
    x: Tensor,
    weight: Tensor,
    stride: int | tuple[int, int],
    padding: int | tuple[int, int],
    dilation: int | tuple[int, int],
) -> ConvExtents:
    """Return the extents of a convolution.

    Raises:
        ArgumentError, ShapeError: see ``conv2d``.
    """
    where = f"op {name!r}"
    require(
        len(x.shape) == len(weight.shape) == 4,
        f"{where}: x {x} must be (images, H, W, C) and weight {weight} (N, R, S, C)",
    )
    require(
        x.shape[3] == weight.shape[3],
        f"{where}: x {x} has {x.shape[3]} channels, and weight {weight}, which is (N, R, S, C), has {weight.shape[3]}",
    )
    for what, channels in (("input", x.shape[3]), ("output", weight.shape[0])):
        require(
            channels % _CHANNEL_STEP == 0,
            f"{where} has {channels} {what} channels; pad them with zeros to a multiple of {_CHANNEL_STEP}",
        )
    strides, dilations = read_pair(where, "stride", stride, 1), read_pair(where, "dilation", dilation, 1)
    paddings = read_pair(where, "padding", padding, 0)
    images, height, width, channels = x.shape
    n, taps_h, taps_w, _ = weight.shape
    extents = ConvExtents(images, height, width, channels, n, taps_h, taps_w, strides, paddings, dilations)
    for axis, side, extent in ((0, "rows", extents.height), (1, "columns", extents.width)):
        padded, reach = extent + 2 * extents.padding[axis], extents.reach[axis]
        require(
            reach <= padded,
            f"{where}: the kernel covers {reach} {side}, and the padded image has {padded}; use a larger image or more "
            "padding",
        )
    return extents
