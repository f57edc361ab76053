"""Extents and tiles of a convolution.

A tile is ``rows`` whole rows of output pixels of an image, or all rows of ``images`` images, times ``n`` output
channels. So it reads a box of each tensor. Rows 4 and 5 of an image of 7 x 7 pixels, 3 x 3 taps, padding 1:

    pixels   2 * 7 = 14, computed as 16 with swap-AB, else as 64
    x        rows 4 - 1 .. 5 + 1, the halo included: [3, 7)
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.arguments import format_value
from interlace.core.errors import ArgumentError, ShapeError
from interlace.graph.op import Op, Param
from interlace.kernels.base import check_block, next_power_of_2, require

#: Name of the kernel.
NAME = "conv2d"
#: Params that define an op's tile, in the order of its fields.
TILING = ("TILE_IMAGES", "TILE_ROWS", "BN", "BK", "STAGES", "num_warps", "SWAP")
_TALL, _STEP, _MIN_BLOCK = 64, 8, 16
_MAX_EXTENT = 1 << 20  # bound of strides, paddings and dilations, so that bounds of rows stay within 32 bits


@dataclass(frozen=True)
class ConvExtents:
    """Extents of a convolution.

    Attributes:
        images, height, width, channels: extents of x.
        out_channels, taps_h, taps_w: extents of the weights, next to ``channels``.
        stride, padding, dilation: along height and width.
    """

    images: int
    height: int
    width: int
    channels: int
    out_channels: int
    taps_h: int
    taps_w: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def out_rows(self) -> int:
        """Rows of output pixels of an image."""
        return self._count_outputs(self.height, self.taps_h, 0)

    @property
    def out_columns(self) -> int:
        """Columns of output pixels of an image."""
        return self._count_outputs(self.width, self.taps_w, 1)

    @property
    def taps(self) -> int:
        """Number of taps."""
        return self.taps_h * self.taps_w

    @property
    def reach(self) -> tuple[int, int]:
        """Extents of the dilated kernel, in input pixels."""
        return self.dilation[0] * (self.taps_h - 1) + 1, self.dilation[1] * (self.taps_w - 1) + 1

    @property
    def flops(self) -> float:
        """Floating-point operations, those on padding included."""
        pixels = self.images * self.out_rows * self.out_columns
        return 2.0 * pixels * self.out_channels * self.channels * self.taps

    def _count_outputs(self, extent: int, taps: int, axis: int) -> int:
        reach = self.dilation[axis] * (taps - 1) + 1
        return (extent + 2 * self.padding[axis] - reach) // self.stride[axis] + 1


@dataclass(frozen=True)
class Conv2DTile:
    """Tile shape and pipelining of the loop over channels and taps.

    Attributes:
        images: images of the tile; more than one only if it has all rows of them.
        rows: rows of output pixels of each image.
        n: output channels; a multiple of 8. Triton bodies support powers of two from 16 on.
        k: input channels of one chunk of the reduction; as n. The megakernel supports multiples of 64.
        stages: depth of the software pipeline, 1 to 64.
        num_warps: warps per thread block.
        swap_ab: True to multiply the transpose (swap-AB), with the weights as the tensor core's 64-row operand, so
            that pixels are padded to a multiple of 8 instead of 64.
    """

    images: int = 1
    rows: int = 1
    n: int = 64
    k: int = 64
    stages: int = 3
    num_warps: int = 4
    swap_ab: bool = True

    def __post_init__(self) -> None:
        what = f"convolution tile of {self.images} images x {self.rows} rows x {self.n} channels x {self.k}"
        for extent in (self.images, self.rows):
            require(type(extent) is int and extent > 0, f"{what}: use positive numbers of images and rows")
        for extent in (self.n, self.k):
            require(
                type(extent) is int and extent > 0 and extent % _STEP == 0,
                f"{what}: channels must be multiples of {_STEP}",
            )
        check_block(what, self.n, self.k)
        require(
            type(self.stages) is int and 1 <= self.stages <= 64,
            f"{what} has {self.stages!r} stages; use 1 to 64",
        )
        require(type(self.swap_ab) is bool, f"{what} has swap_ab {self.swap_ab!r}; use True or False")

    @property
    def params(self) -> tuple[tuple[str, Param], ...]:
        """The tile as an op's params."""
        return tuple(zip(TILING, vars(self).values(), strict=True))

    def count_pixels(self, extents: ConvExtents) -> int:
        """Return the number of output pixels of a tile."""
        return self.images * self.rows * extents.out_columns

    def pad_pixels(self, extents: ConvExtents) -> int:
        """Return the number of pixels that the tensor core multiplies: a multiple of 8 or of 64 for each warpgroup."""
        step = _STEP if self.swap_ab else _TALL * max(1, self.num_warps // 4)
        return -(-self.count_pixels(extents) // step) * step

    @staticmethod
    def heuristic(extents: ConvExtents) -> Conv2DTile:
        """Return a tile of up to 64 pixels in whole rows, or one row."""
        rows = max(1, min(extents.out_rows, _TALL // extents.out_columns))
        return Conv2DTile(1, rows)


def read_extents(op: Op) -> ConvExtents:
    """Return the extents of a convolution op."""

    def read(name: str) -> int:
        return int(op.param(name))

    def read_pair(name: str) -> tuple[int, int]:
        return read(f"{name}_H"), read(f"{name}_W")

    images, height, width, channels, n, taps_h, taps_w = map(read, ("IMAGES", "H", "W", "C", "N", "R", "S"))
    moves = read_pair("STRIDE"), read_pair("PAD"), read_pair("DILATION")
    return ConvExtents(images, height, width, channels, n, taps_h, taps_w, *moves)


def read_tile(op: Op) -> Conv2DTile:
    """Return the tile of a convolution op."""
    return Conv2DTile(*(op.parameters[name] for name in TILING))  # type: ignore[arg-type]


def count_block_pixels(pixels: int) -> int:
    """Return the rows of a Triton block for a tile of so many pixels: a power of two."""
    return max(_MIN_BLOCK, next_power_of_2(pixels))


def count_partial_elements(op: Op) -> int:
    """Return the float32 elements of one split-K partial of a tile in the megakernel."""
    return int(op.param("BM")) * int(op.param("BN"))


def count_block_elements(op: Op) -> int:
    """Return the float32 elements of one split-K partial of a tile in a Triton body."""
    return int(op.param("BLOCK")) * int(op.param("BN"))


def read_pair(where: str, what: str, value: object, least: int) -> tuple[int, int]:
    """Return a number along height and width.

    Raises:
        ArgumentError: neither an int nor two.
        ShapeError: a number out of range.
    """
    pair = (value, value) if type(value) is int else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or any(type(each) is not int for each in pair):
        raise ArgumentError(f"{where} has {what} {format_value(value)}; use an int, or two for height and width")
    if not all(least <= each <= _MAX_EXTENT for each in pair):
        raise ShapeError(f"{where} has {what} {format_value(value)}; use {least} to {_MAX_EXTENT}")
    return pair[0], pair[1]
