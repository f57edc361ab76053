"""Convolution in the megakernel: which tiles it takes, their type, and the operands of an op.

A tile becomes a type, Conv2D with its config (``csrc/ops/conv2d.cuh``), and bytes of shared memory. Rows 4 and 5 of an
image of 14 x 14 pixels times 64 output channels, in stages of 64 channels:

    type           Conv2D_BM32_BN64_BK64_ROWS32_GATES1_SWAP_AB_...    28 pixels, padded to 32
    prefetchable   64 * 64 * 2 = 8 KiB a stage     weights of a tap, before the waits
    dependent      32 * 64 * 2 = 4 KiB a stage     pixels of a tap, after them
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from interlace.core.dtypes import DType
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct
from interlace.kernels.base import require
from interlace.kernels.bodies import MAX_BOX_ROWS, PANEL, MegakernelTile, check_alignment
from interlace.kernels.conv2d.tile import count_partial_elements, read_extents, read_tile
from interlace.kernels.cuda.config import Parameters, template_of
from interlace.kernels.matmul.megakernel_body import (
    MATMUL,
    PITCH_BYTES,
    PLAIN,
    check_stage,
    check_sums,
    count_warpgroups,
    declare_product,
)
from interlace.kernels.matmul.megakernel_operands import NO_OPTIONAL_OPERANDS, ROW_BYTES, check_operands
from interlace.kernels.matmul.megakernel_operands import OPERANDS as OF_MATMUL
from interlace.kernels.matmul.tilings import MAX_WARPGROUPS, compute_share
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelLoads, Tiling, Warpgroups

_TALL = 64
_PARTS_AT_ONCE = 4  # parts of a tile whose partials are loaded at once
_MAX_COOPERATIVE_REGISTERS = 128  # of a thread of three warpgroups: sums, and those of its share
_MAX_STEP = 8  # stride of a box (CUDA driver API, cuTensorMapEncodeTiled)
_ALIGN_BYTES = 16
_GEOMETRY = (
    *("images", "tile_images", "tile_rows", "pixels", "out_rows", "out_columns"),
    *("taps_h", "taps_w", "row_step", "pad_h", "pad_w", "dilation_h", "dilation_w"),
)

#: Operands of each op in a launch.
OPERANDS = Struct("Operands", (*OF_MATMUL.fields, *((name, "int") for name in _GEOMETRY)))

SOURCE = MATMUL + include("ops/conv2d.cuh")


def check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the launch can load an op's tensors, whatever its tile is.

    Raises:
        DTypeError: a dtype other than bf16 and fp16.
        ShapeError: an output row wider than a box, or a stride that boxes do not have.
    """
    check_operands(op, tensors)
    extents = read_extents(op)
    widest = (extents.out_columns - 1) * extents.stride[1] + 1
    require(
        widest <= MAX_BOX_ROWS,
        f"op {op.name!r}: a row of output pixels covers {widest} input columns, and a bulk load brings {MAX_BOX_ROWS}; "
        "use narrower images, or the persistent executor",
    )
    require(
        max(extents.stride) <= _MAX_STEP,
        f"op {op.name!r} has stride {extents.stride}; bulk loads have strides of up to {_MAX_STEP}. Use the persistent "
        "executor",
    )


def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """Return how the tiles of an op are computed, the most split of which have ``parts`` parts.

    Raises:
        ShapeError: its tile suits no warpgroups, registers or bulk loads.
    """
    return _build_tile(op, parts, warpgroups)


def build_cooperative_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile | None:
    """Return how tiles are computed whose parts each add and finish a share of the columns of products.

    Returns None if a share would be empty, or if registers do not suffice.
    """
    wide = int(op.param("BM" if op.param("SWAP") else "BN"))
    share = compute_share(wide, parts)
    elements = count_partial_elements(op)
    registers = (elements + elements // wide * share) // (128 * warpgroups)
    if not share or (warpgroups > 2 and registers > _MAX_COOPERATIVE_REGISTERS):
        return None
    return _build_tile(op, parts, warpgroups, parts)


def _build_tile(op: Op, parts: int, warpgroups: int, shares: int = 1) -> MegakernelTile:
    bm, bn, bk = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    transposed, elements = bool(op.param("SWAP")), count_partial_elements(op)
    tall, wide = (bn, bm) if transposed else (bm, bn)
    what = check_stage(op)
    check_sums(what, tall, elements, warpgroups, "a taller one, fewer warps, or swap_ab")
    extents, tile = read_extents(op), read_tile(op)
    spans = (tile.rows - 1) * extents.stride[0] + 1, tile.images
    require(
        max(spans) <= MAX_BOX_ROWS,
        f"{what}: a box of {spans[0]} input rows of {spans[1]} images, and a box has {MAX_BOX_ROWS} at most; use fewer",
    )
    # Code that a block runs once per op is fetched cold, so what differs between ops of a network is no parameter: rows
    # of a slot are those of the product, and an op without a residual has none of its rows.
    own: Parameters = {"BM": bm, "BN": bn, "BK": bk, "ROWS": bm, "GATES": 1, "SWAP_AB": transposed}
    own |= PLAIN | {
        "BIAS": any(access.arg == "bias" for access in op.reads),
        "RESIDUAL": True,
        "RELU_LAST": op.param("ACTIVATION") == "relu",
        "PARTS_AT_ONCE": 1 if shares > 1 else min(parts, _PARTS_AT_ONCE),
        "SHARES": shares,
    }
    type_, config = template_of("Conv2D", own)
    return MegakernelTile(
        type_,
        (declare_product(wide), config),
        prefetchable_bytes=bn * bk * 2,
        dependent_bytes=bm * bk * 2,
        scratch_bytes=(min(wide, _TALL) if transposed else _TALL) * PITCH_BYTES,
        overread_bytes=0,
        partial_elements=elements,
        shared_elements=elements // wide * compute_share(wide, shares),
    )


def pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """Return the operands of an op, given its tensors on the device by argument.

    Raises:
        ShapeError: a tensor does not begin at a multiple of 16 bytes.
    """
    from interlace.kernels.cuda.launcher import encode_tensor_map

    for name, tensor in tensors.items():
        check_alignment(op.name, name, tensor.data_ptr(), _ALIGN_BYTES, "bulk loads and the epilogue want")
    extents, tile = read_extents(op), read_tile(op)

    def encode_map(name: str, shape: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...]) -> bytes:
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return encode_tensor_map(
            tensors[name].data_ptr(),
            shape,
            strides,
            box,
            dtype,
            steps=steps,
            is_swizzled=True,
            l2_fetch_bytes=ROW_BYTES,
        ).descriptor

    e = extents
    pixels = tile.images, tile.rows, e.out_columns, PANEL
    x = encode_map("x", (e.images, e.height, e.width, e.channels), pixels, (1, *e.stride, 1))
    weight = encode_map("weight", (e.out_channels, e.taps, e.channels), (tile.n, 1, PANEL), (1, 1, 1))
    count = e.images * e.out_rows * e.out_columns
    return OPERANDS.pack(
        x=x,
        weight=weight,
        **{**NO_OPTIONAL_OPERANDS, **{name: tensors.get(name) for name in ("bias", "residual", "out")}},
        m=count,
        n=e.out_channels,
        k=e.channels,
        x_rows=count,
        residual_rows=count,
        images=e.images,
        tile_images=tile.images,
        tile_rows=tile.rows,
        pixels=tile.count_pixels(e),
        out_rows=e.out_rows,
        out_columns=e.out_columns,
        taps_h=e.taps_h,
        taps_w=e.taps_w,
        row_step=tile.rows * e.stride[0],
        pad_h=e.padding[0],
        pad_w=e.padding[1],
        dilation_h=e.dilation[0],
        dilation_w=e.dilation[1],
    )


MEGAKERNEL_BODY = MegakernelBody(
    SOURCE,
    OPERANDS,
    pack,
    Tiling(
        build_tile,
        Warpgroups(MAX_WARPGROUPS, count_required=count_warpgroups),
        build_cooperative_tile,
    ),
    MegakernelLoads(prefetchable_inputs=("weight", "bias"), is_chunked=True),
    check=check,
)
