"""Rows of a matrix, each by a team of threads: all of a block where a tile is one row, a warp where it is eight.

One row a tile is soonest ready; many rows would be as many tiles, of which each costs its fetch and its meeting.
``kernels/cuda/teams`` has the text.
"""

from __future__ import annotations

from interlace.core.arguments import whole
from interlace.kernels.base import check_extents, power_of_two, require

#: Rows of a tile at most: warps of the two warpgroups that a block may have.
MOST_ROWS = 8
_WAVES = 2  # of tiles, before they take more rows
_BLOCK = 4096  # elements that a Triton body holds at once


def rows_of(rows: int, sms: int) -> int:
    """Rows of a tile where there are so many, a power of two: one while tiles of one make few waves."""
    return min(MOST_ROWS, power_of_two(-(-rows // (_WAVES * sms))))


def tile_of(name: str, shape: tuple[int, ...], rows: object) -> tuple[int, int]:
    """Rows of a tile of a matrix, which is whole rows, and the columns that a Triton body takes of them at once.

    Raises:
        ArgumentError, ShapeError: no number, none that a tile can have, or a matrix that 32 bits do not count.
    """
    where = f"op {name!r}"
    count = whole(rows, where, "rows")
    require(
        1 <= count <= MOST_ROWS and count == power_of_two(count),
        f"{where} has tiles of {count} rows; use a power of two of at most {MOST_ROWS}",
    )
    check_extents(where, shape, (count, _BLOCK))
    return count, min(power_of_two(shape[1]), _BLOCK // count)
