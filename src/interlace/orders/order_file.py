"""An order made by hand, as a file: the grid, and its tiles in the sequence in which they run.

    {"schema": "interlace-order", "version": 1, "grid": [2, 2], "tiles": [0, 1, 3, 2]}

Tiles are numbered row by row. A file of the studio also has its game, as ``game``, even before all tiles are taken; an
incomplete order cannot run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod
from typing import Any

from interlace.core.errors import OrderError
from interlace.graph.access import Ints
from interlace.policies.orders import Order, check_permutation

SCHEMA, VERSION = "interlace-order", 1
#: Maximum number of tiles of a file; a plan takes no more items.
MAX_TILES = 1 << 22


@dataclass(frozen=True)
class SavedOrder(Order):
    """Order read from a file, for ops with the same grid.

    Attributes:
        rows, columns: sizes of the grid; columns is its last dimension, rows the product of all others.
        tiles: linear tile numbers, in the sequence in which they run.

    Raises:
        OrderError: on use for an op of another grid, or if the tiles are not a permutation of it.
    """

    rows: int
    columns: int
    tiles: tuple[int, ...] = field(repr=False)

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        return (self.compute_permutation((rows, columns)).argsort(),)

    def compute_permutation(self, grid: tuple[int, ...]) -> Ints:
        rows, columns = prod(grid[:-1]), grid[-1]
        if (rows, columns) != (self.rows, self.columns):
            raise OrderError(
                f"this order is of {self.rows} x {self.columns} tiles, and an op has {rows} x {columns}; "
                "use the sizes and the tile that it was made for"
            )
        if len(self.tiles) < rows * columns:
            raise OrderError(
                f"this order takes {len(self.tiles)} of {rows * columns} tiles; take the others and save it again"
            )
        return check_permutation(self.tiles, rows * columns, f"grid {grid}")


def write_order(order: SavedOrder, **extra: str) -> str:
    """Return the text of a file; the members ``extra`` follow those that every file has."""
    grid, tiles = [order.rows, order.columns], list(order.tiles)
    return json.dumps({"schema": SCHEMA, "version": VERSION, "grid": grid, "tiles": tiles, **extra}) + "\n"


def read_order(text: str) -> SavedOrder:
    """Parse an order from the text of a file. Raises OrderError if it contains none."""
    order, _ = read_file(text)
    return order


def read_file(text: str) -> tuple[SavedOrder, dict[str, Any]]:
    """Parse an order and all members from the text of a file. Raises OrderError if it contains no order."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise OrderError("no order: the text is no JSON; save one in the studio") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise OrderError(f"no order: its schema is not {SCHEMA!r}; save one in the studio")
    if data.get("version") != VERSION:
        raise OrderError(f"an order of version {data.get('version')!r}; this release reads version {VERSION}")
    grid, tiles = _check_numbers(data.get("grid")), _check_numbers(data.get("tiles"))
    if grid is None or len(grid) != 2 or not all(1 <= n <= MAX_TILES for n in grid):
        raise OrderError("grid of an order is no pair of positive whole numbers, rows and columns")
    if tiles is None or len(tiles) > min(MAX_TILES, grid[0] * grid[1]):
        raise OrderError(f"tiles of an order are no list of at most {grid[0]} x {grid[1]} tile numbers")
    return SavedOrder(grid[0], grid[1], tuple(tiles)), data


def _check_numbers(value: object) -> list[int] | None:
    """Return a list of whole numbers, or None for any other value."""
    if not isinstance(value, list) or any(not isinstance(n, int) or isinstance(n, bool) for n in value):
        return None
    return value
