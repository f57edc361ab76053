"""Model in which tile orders are compared: a grid of output tiles over row and column panels.

A matmul's output is a grid of R x C tiles. A tile reads its row panel (its rows of the left operand, over all of K) and
its column panel (its columns of the right operand, over all of K). A cache holds ``capacity`` units; a touched unit
that is not held is loaded. The cost of an order is its number of loads. Units are whole panels, or with ``chunks`` > 1
the chunks of a panel along K. Panel r is row r, panel R + c is column c, and a unit has the number
``panel * chunks + chunk``. On a 2 x 3 grid in two chunks:

    panel    row 0   row 1   column 0   column 1   column 2
    units    0, 1    2, 3    4, 5       6, 7       8, 9

    tile (1, 2) touches (2, 8), (3, 9); with column_first (8, 2), (9, 3); backwards (3, 9), (2, 8)

The two units of a pair are held together while the tile computes, so the minimum capacity is 2. All rows are
equivalent, and so are all columns. Renaming them turns any first tile into any other, so that the minimum over all
orders does not depend on where they start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, product
from typing import NamedTuple

from interlace.core.errors import OrderError, SearchError
from interlace.policies.orders import Order

Pair = tuple[int, int]


class EvictionPolicy(Enum):
    """Eviction policy of a full cache."""

    LRU = "lru"
    """Evict the unit whose last touch is longest ago."""
    OPT = "opt"
    """Evict the unit whose next touch is furthest ahead (Belady, 1966); no other policy loads less."""


class Visit(NamedTuple):
    """One tile of a walk, and the sequence in which it touches its units.

    Attributes:
        row, column: position of the tile.
        column_first: True if the column's unit of each pair is touched before the row's.
        backwards: True if chunks are touched from the last to the first.
    """

    row: int
    column: int
    column_first: bool = False
    backwards: bool = False


@dataclass(frozen=True)
class PanelGrid:
    """Grid of tiles and the units that they touch.

    Attributes:
        rows, columns: number of tiles along each dimension.
        chunks: number of units of a panel.

    Raises:
        SearchError: a size below one.
    """

    rows: int
    columns: int
    chunks: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "chunks"):
            if getattr(self, name) < 1:
                raise SearchError(f"{name} is {getattr(self, name)}; use at least 1")

    @property
    def tiles(self) -> int:
        """Number of tiles that a walk visits."""
        return self.rows * self.columns

    @property
    def units(self) -> int:
        """Number of units, which is a lower bound on the loads of any walk."""
        return (self.rows + self.columns) * self.chunks

    def list_pairs(self, visit: Visit) -> list[Pair]:
        """Return the units that a tile touches, in sequence, as pairs."""
        row, column = visit.row * self.chunks, (self.rows + visit.column) * self.chunks
        chunks = range(self.chunks)[:: -1 if visit.backwards else 1]
        if visit.column_first:
            return [(column + chunk, row + chunk) for chunk in chunks]
        return [(row + chunk, column + chunk) for chunk in chunks]

    def make_walk(self, order: Order) -> tuple[Visit, ...]:
        """Return the visits of an order, with the row panel first and chunks ascending."""
        tiles = order.compute_permutation((self.rows, self.columns)).tolist()
        return tuple(Visit(*divmod(tile, self.columns)) for tile in tiles)

    def check_capacity(self, capacity: int) -> None:
        """Raise SearchError unless the two units of a pair fit."""
        if capacity < 2:
            raise SearchError(
                f"a cache of {capacity} units is less than one working set: "
                "a tile holds a row unit and a column unit at once; use a capacity of at least 2"
            )

    def check_walk(self, walk: Sequence[Visit]) -> None:
        """Raise OrderError unless the walk visits each tile exactly once."""
        visited = [(visit.row, visit.column) for visit in walk]
        wanted = set(product(range(self.rows), range(self.columns)))
        if len(visited) != self.tiles or set(visited) != wanted:
            repeated = [a for a, b in pairwise(sorted(visited)) if a == b]
            tile = min([*wanted.symmetric_difference(visited), *repeated])
            raise OrderError(
                f"walk over {self.rows} x {self.columns} tiles misses, repeats or invents tile {tile}; "
                "visit each tile exactly once"
            )

    def check_prefix(self, walk: Sequence[Visit]) -> None:
        """Raise OrderError unless all visits are of different tiles of the grid."""
        seen: set[Pair] = set()
        for visit in walk:
            tile = (visit.row, visit.column)
            if not (0 <= visit.row < self.rows and 0 <= visit.column < self.columns):
                raise OrderError(f"tile {tile} is outside a grid of {self.rows} x {self.columns}; name one inside")
            if tile in seen:
                raise OrderError(f"tile {tile} is visited twice; visit each tile once")
            seen.add(tile)


def relabel_walk(walk: Iterable[Visit], start: Pair) -> tuple[Visit, ...]:
    """Exchange two rows and two columns of a walk, so that it starts at ``start`` and costs the same."""
    visits = tuple(walk)
    row, column = visits[0].row, visits[0].column
    rows = {row: start[0], start[0]: row}
    columns = {column: start[1], start[1]: column}
    return tuple(
        visit._replace(row=rows.get(visit.row, visit.row), column=columns.get(visit.column, visit.column))
        for visit in visits
    )
