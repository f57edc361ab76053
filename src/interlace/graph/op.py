"""Ops: tiled kernels as data, bound to the tensors of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from interlace.core.errors import ShapeError
from interlace.graph.access import Access, Ints

Param = int | float | str | bool


@dataclass(frozen=True)
class Reduction:
    """The loop that a tile runs: ``extent`` elements, in chunks of ``block``.

    Items may split it; splits and waits inside it fall on multiples of ``block``.
    """

    extent: int
    block: int

    def __post_init__(self) -> None:
        if self.extent < 1 or self.block < 1:
            raise ShapeError(f"reduction of {self.extent} in chunks of {self.block}; both must be positive")

    @property
    def chunks(self) -> int:
        """Number of chunks, the last possibly short."""
        return -(-self.extent // self.block)


@dataclass(frozen=True)
class Op:
    """A tiled kernel applied to tensors.

    Attributes:
        name: unique in its graph.
        kernel: name of the kernel, which is how a plan read from JSON finds its body.
        grid: number of tiles along each tile coordinate (1 to 3 of them).
        reads, writes: what each tile touches.
        reduction: the loop that a tile runs, or None if it runs none.
        params: the kernel's numbers (tile sizes, activation, ...), all serialisable.
        flops: floating-point operations of one whole tile.
        body: the kernel object itself; not part of the value, and None after reading JSON.
    """

    name: str
    kernel: str
    grid: tuple[int, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    reduction: Reduction | None = None
    params: tuple[tuple[str, Param], ...] = ()
    flops: float = 0.0
    body: object = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.grid) <= 3 or any(n < 1 for n in self.grid):
            raise ShapeError(f"op {self.name!r} has grid {self.grid}; use 1 to 3 positive extents")
        if any(a.uses_k for a in self.writes):
            raise ShapeError(f"op {self.name!r} writes a region that depends on the k-range; only reads may")
        if self.reduction is None and any(a.uses_k for a in self.reads):
            raise ShapeError(f"op {self.name!r} reads a k-range but declares no reduction; pass reduction=")

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return prod(self.grid)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Reads, then writes."""
        return self.reads + self.writes

    @property
    def k_extent(self) -> int:
        """Length of the reduction, 1 for an op without one (its only k-range is [0, 1))."""
        return self.reduction.extent if self.reduction else 1

    def param(self, name: str) -> Param:
        """One of the kernel's numbers."""
        return self.parameters[name]

    @property
    def parameters(self) -> Mapping[str, Param]:
        """The kernel's numbers by name."""
        return dict(self.params)

    def coords(self, tiles: Ints | None = None) -> Ints:
        """Coordinates, shape (n, len(grid)), of linear (row-major) tile numbers; all tiles by default."""
        tiles = np.arange(self.tiles, dtype=np.int64) if tiles is None else np.asarray(tiles, np.int64)
        return np.stack(np.unravel_index(tiles, self.grid), axis=1).astype(np.int64)

    def tile_name(self, tile: int) -> str:
        """``op 'down', tile (3, 0)``, for messages."""
        where = ", ".join(str(int(c)) for c in np.unravel_index(int(tile), self.grid))
        return f"op {self.name!r}, tile ({where})"
