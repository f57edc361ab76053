"""Sync policies: which tiles of a producer share a semaphore.

A policy maps the tile coordinates of one op to semaphore numbers. Thresholds and waits follow from the
graph: a wait covers every semaphore that a needed tile posts, and waits for all of its posts. So a
policy can only make waits coarser; it cannot lose a dependency.

    grid 2 x 3     TileSync   RowSync   ColumnSync   BatchedRowSync(2)   StridedSync(2)   KernelSync
                   0 1 2      0 0 0     0 1 2        0 0 0               0 1 0            0 0 0
                   3 4 5      1 1 1     0 1 2        0 0 0               2 3 2            0 0 0

A custom policy is a frozen dataclass with one method:

    @dataclass(frozen=True)
    class HalfRowSync(SyncPolicy):
        def assign_semaphores(self, coords, grid):
            half = coords[:, 1] >= grid[1] // 2
            return coords[:, 0] * 2 + half
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Ints
from interlace.policies.consumers import Consumers
from interlace.policies.orders import check_positive


class SyncPolicy(ABC):
    """Map from the tiles of a producer to semaphores."""

    @abstractmethod
    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        """Return the semaphore number, from 0, of each tile; ``coords`` has shape (tiles, len(grid)).

        -1 means that the tile posts nothing.
        """

    def assign_op_semaphores(self, op: int, consumers: Consumers) -> Ints:
        """Return the semaphores of all tiles of the graph's op at position ``op``, given the tiles' consumers."""
        grid = consumers.dependencies.graph.ops[op]
        return self.assign_semaphores(grid.compute_coords(), grid.grid)

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class NoSync(SyncPolicy):
    """No semaphores: for ops whose consumers the same worker runs after them, in its own program order."""

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return np.full(len(coords), -1, np.int64)


@dataclass(frozen=True)
class TileSync(SyncPolicy):
    """One semaphore per tile: consumers start earliest, and poll most."""

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return _linearise(coords, grid)


@dataclass(frozen=True)
class RowSync(SyncPolicy):
    """One semaphore per row of tiles (first coordinate)."""

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return coords[:, 0]


@dataclass(frozen=True)
class ColumnSync(SyncPolicy):
    """One semaphore per column of tiles (last coordinate)."""

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return coords[:, -1]


@dataclass(frozen=True)
class BatchedRowSync(SyncPolicy):
    """One semaphore per ``rows`` consecutive rows of tiles."""

    rows: int

    def __post_init__(self) -> None:
        check_positive("BatchedRowSync", "rows", self.rows)

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return coords[:, 0] // self.rows


@dataclass(frozen=True)
class StridedSync(SyncPolicy):
    """Semaphores shared, within a row, by tiles whose last coordinates are equal modulo ``stride``.

    It fits consumers that gather equally spaced column tiles, such as the Q, K and V slices of one head
    (CuSync's strided synchronisation for attention).
    """

    stride: int

    def __post_init__(self) -> None:
        check_positive("StridedSync", "stride", self.stride)

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        stride = min(self.stride, grid[-1])
        return _linearise(coords[:, :-1], grid[:-1]) * stride + coords[:, -1] % stride


@dataclass(frozen=True)
class Conv2DSync(SyncPolicy):
    """One semaphore per block of pixels, shared by its output-channel tiles (last coordinate).

    It fits a convolution that follows a convolution. The consumer reads all channels of a pixel block and its halo,
    so only the block and the neighbours in its halo are awaited (CuSync's Conv2D synchronisation).
    """

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return _linearise(coords[:, :-1], grid[:-1])


@dataclass(frozen=True)
class KernelSync(SyncPolicy):
    """One semaphore for the whole op, as coarse as stream order."""

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        return np.zeros(len(coords), np.int64)


@dataclass(frozen=True)
class ConsumerSync(SyncPolicy):
    """One semaphore for all tiles that the same items need: as early a start as ``TileSync``, with the fewest polls.

    Items that start after all of an op's tiles in any case do not distinguish them (``consumers``).
    """

    def assign_semaphores(self, coords: Ints, grid: tuple[int, ...]) -> Ints:
        """Return one semaphore per tile, for tiles whose consumers are unknown."""
        return _linearise(coords, grid)

    def assign_op_semaphores(self, op: int, consumers: Consumers) -> Ints:
        base = consumers.dependencies.base
        _, first, same = np.unique(
            consumers.tile_hashes[base[op] : base[op + 1]], return_index=True, return_inverse=True
        )
        number: Ints = np.argsort(np.argsort(first))[same]  # numbered by first tile
        return number


def _linearise(coords: Ints, grid: tuple[int, ...]) -> Ints:
    number = np.zeros(len(coords), np.int64)
    for d, extent in enumerate(grid):
        number = number * extent + coords[:, d]
    return number
