"""Tiles of a matmul."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.graph.op import Param
from interlace.kernels.base import check_block, require

#: Params that define an op's tile, in the order of its fields.
TILING = ("BM", "BN", "BK", "STAGES", "num_warps", "SWAP", "PREFETCH")


@dataclass(frozen=True)
class MatmulTile:
    """Tile shape and pipelining of the loop over K.

    Attributes:
        m, n, k: extents of the tile and of one chunk of the reduction; multiples of 8. Triton bodies support powers
            of two from 16 on.
        stages: depth of the software pipeline, 1 to 64.
        num_warps: warps per thread block.
        swap_ab: True to multiply the transpose (swap-AB), with the weights as the tensor core's 64-row operand and
            the tokens as its columns; pays off for m below 64.
        prefetch_bytes: weight bytes per item that a persistent worker prefetches into the L2 before it waits.
    """

    m: int = 64
    n: int = 64
    k: int = 64
    stages: int = 3
    num_warps: int = 4
    swap_ab: bool = False
    prefetch_bytes: int = 0

    def __post_init__(self) -> None:
        what = f"matmul tile {self.m} x {self.n} x {self.k}"
        for extent in (self.m, self.n, self.k):
            require(
                type(extent) is int and extent >= 8 and extent % 8 == 0,
                f"{what}: extents must be multiples of 8",
            )
        for block in ((self.m, self.n), (self.m, self.k), (self.n, self.k)):
            check_block(what, *block)
        require(
            type(self.stages) is int and 1 <= self.stages <= 64,
            f"{what} has {self.stages!r} stages; use 1 to 64",
        )
        require(type(self.swap_ab) is bool, f"{what} has swap_ab {self.swap_ab!r}; use True or False")
        require(
            type(self.prefetch_bytes) is int and 0 <= self.prefetch_bytes < 1 << 31,
            f"{what} prefetches {self.prefetch_bytes!r} bytes; use 0 to 2^31 - 1",
        )

    @property
    def params(self) -> tuple[tuple[str, Param], ...]:
        """The tile as an op's params."""
        return tuple(zip(TILING, vars(self).values(), strict=True))

    @staticmethod
    def heuristic(m: int) -> MatmulTile:
        """Return a tile for m rows that does well on an H200 for all other extents (docs/performance.md)."""
        if m <= 32:
            return MatmulTile(16 if m <= 16 else 32, 64, 128, 4, 4, swap_ab=True)
        if m <= 64:
            return MatmulTile(64, 64, 128, 4, 4)
        return MatmulTile(128, 128, 64, 4, 8)


@dataclass(frozen=True)
class TileShape:
    """Extents of an op's output tile and of one chunk of its reduction."""

    m: int
    n: int
    k: int = 64


_CPU_TILE = MatmulTile(16, 64, 64)  # small, so that small graphs still have several waves


def select_matmul_tile(m: int, device: DeviceSpec, tile: TileShape | None) -> MatmulTile:
    """Return the given tile of a matmul over m rows, or one that suits the device."""
    if tile is not None:
        return MatmulTile(tile.m, tile.n, tile.k)
    return MatmulTile.heuristic(m) if device.architecture else _CPU_TILE
