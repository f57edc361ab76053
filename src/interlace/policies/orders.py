"""Orders: the sequence in which the tiles of one op run.

An order returns a permutation of linear (row-major) tile numbers. A grid of more than two dimensions is
treated as (all but the last) x last. A 3 x 4 grid, with the position of each tile in the order:

    RowMajor     ColumnMajor   GroupedColumnMajor(2)   Serpentine   GroupedSerpentine(2)
    0 1 2  3     0 3 6  9      0 2 4  6           0 1 2  3     0  3  4 7
    4 5 6  7     1 4 7 10      1 3 5  7           7 6 5  4     1  2  5 6
    8 9 10 11    2 5 8 11      8 9 10 11          8 9 10 11    11 10 9 8
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import numpy as np

from interlace.core.arguments import check_int, check_int_array
from interlace.core.errors import OrderError
from interlace.graph.access import Ints


class Order(ABC):
    """A permutation of an op's tiles."""

    @abstractmethod
    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        """Return sort keys of each tile, most significant first."""

    def compute_permutation(self, grid: tuple[int, ...]) -> Ints:
        """Return linear tile numbers in the order in which they run."""
        columns = grid[-1]
        rows = prod(grid[:-1])
        tile = np.arange(rows * columns, dtype=np.int64)
        keys = self.rank(tile // columns, tile % columns, rows, columns)
        if not isinstance(keys, tuple) or any(np.shape(key) != tile.shape for key in keys):
            raise OrderError(f"rank of {type(self).__name__} must give a tuple of keys, each with one entry per tile")
        order: Ints = np.lexsort(keys[::-1]).astype(np.int64)
        return order

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class RowMajor(Order):
    """Row by row, left to right."""

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        return row, column


@dataclass(frozen=True)
class ColumnMajor(Order):
    """Column by column, top to bottom."""

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        return column, row


@dataclass(frozen=True)
class GroupedColumnMajor(Order):
    """Panels of ``rows`` rows, each run column by column: the L2-friendly order of Triton's tutorials."""

    rows: int

    def __post_init__(self) -> None:
        check_positive("GroupedColumnMajor", "rows", self.rows)

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        return row // min(self.rows, rows), column, row


@dataclass(frozen=True)
class Serpentine(Order):
    """Row by row, every second row backwards, so that neighbours in time are neighbours in space."""

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        return row, np.where(row % 2 == 0, column, columns - 1 - column)


@dataclass(frozen=True)
class GroupedSerpentine(Order):
    """Panels of ``rows`` rows, column by column, every second column upwards, every second panel from the right.

    A panel begins with the operands that the previous panel touched last. With one row it is ``Serpentine``.
    """

    rows: int

    def __post_init__(self) -> None:
        check_positive("GroupedSerpentine", "rows", self.rows)

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        panel = row // min(self.rows, rows)
        step = np.where(panel % 2 == 0, column, columns - 1 - column)
        return panel, step, np.where(step % 2 == 0, row, -row)


@dataclass(frozen=True)
class Morton(Order):
    """Z-order by the interleaved bits of row and column (Morton, 1966)."""

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        key = np.zeros(len(row), np.int64)
        for bit in range(max(rows, columns).bit_length()):
            key |= ((column >> bit) & 1) << (2 * bit) | ((row >> bit) & 1) << (2 * bit + 1)
        return (key,)


@dataclass(frozen=True)
class Hilbert(Order):
    """Hilbert-like curve on any rectangle, on which successive tiles are adjacent.

    The rectangle is halved recursively along its longer side, or divided into one piece of each orientation if
    it is nearly square. Odd splits are nudged to even so that the curve stays connected (the generalised Hilbert
    curve described by Cerveny, 2018). Exactly one step is diagonal if the longer side is odd and the shorter side is
    an even number of at least 4; otherwise none is.
    """

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        path: list[tuple[int, int]] = []
        if columns >= rows:
            _append_curve(path, 0, 0, columns, 0, 0, rows)
        else:
            _append_curve(path, 0, 0, 0, rows, columns, 0)
        position = np.empty((rows, columns), np.int64)
        x, y = np.array(path, np.int64).T
        position[y, x] = np.arange(len(path))
        return (position[row, column],)


@dataclass(frozen=True)
class ExplicitOrder(Order):
    """Tiles in a given order, as linear tile numbers."""

    tiles: tuple[int, ...]

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        position = np.empty(rows * columns, np.int64)
        position[np.array(self.tiles, np.int64)] = np.arange(len(self.tiles))
        return (position,)

    def compute_permutation(self, grid: tuple[int, ...]) -> Ints:
        return check_permutation(self.tiles, prod(grid), f"grid {grid}")


def check_positive(what: str, name: str, value: int) -> None:
    """Check that a parameter of a policy, order or split is a positive int.

    Raises:
        ArgumentError: the value is not an int.
        OrderError: the value is not positive.
    """
    if check_int(value, what, name) < 1:
        raise OrderError(f"{what} {name} is {value}; use a positive number")


def check_permutation(values: object, n: int, where: str) -> Ints:
    """Convert the values of an order to an array.

    Raises:
        OrderError: the values do not hold each of 0..n-1 exactly once.
    """
    sequence = check_int_array(values, None, OrderError, f"order for {where}")
    if len(sequence) and (sequence.min() < 0 or sequence.max() >= n):
        bad = sequence[(sequence < 0) | (sequence >= n)][0]
        raise OrderError(f"order names {int(bad)}, but {where} has entries 0..{n - 1}")
    count = np.bincount(sequence, minlength=n)
    if (count != 1).any():
        at = int(np.flatnonzero(count != 1)[0])
        raise OrderError(f"order for {where} lists entry {at} {int(count[at])} times; list each of {n} exactly once")
    return sequence


def _append_curve(path: list[tuple[int, int]], x: int, y: int, ax: int, ay: int, bx: int, by: int) -> None:
    """Append the curve over the box at (x, y) spanned by the major axis a and the minor axis b."""
    width, height = abs(ax + ay), abs(bx + by)
    dax, day = _sign(ax), _sign(ay)
    dbx, dby = _sign(bx), _sign(by)
    if height == 1:
        path.extend((x + i * dax, y + i * day) for i in range(width))
        return
    if width == 1:
        path.extend((x + i * dbx, y + i * dby) for i in range(height))
        return
    ax2, ay2, bx2, by2 = ax // 2, ay // 2, bx // 2, by // 2
    if 2 * width > 3 * height:
        if abs(ax2 + ay2) % 2 and width > 2:
            ax2, ay2 = ax2 + dax, ay2 + day
        _append_curve(path, x, y, ax2, ay2, bx, by)
        _append_curve(path, x + ax2, y + ay2, ax - ax2, ay - ay2, bx, by)
        return
    if abs(bx2 + by2) % 2 and height > 2:
        bx2, by2 = bx2 + dbx, by2 + dby
    _append_curve(path, x, y, bx2, by2, ax2, ay2)
    _append_curve(path, x + bx2, y + by2, ax, ay, bx - bx2, by - by2)
    x, y = x + (ax - dax) + (bx2 - dbx), y + (ay - day) + (by2 - dby)
    _append_curve(path, x, y, -bx2, -by2, -(ax - ax2), -(ay - ay2))


def _sign(v: int) -> int:
    return (v > 0) - (v < 0)
