"""Rows of a matrix, each by a team of threads: all of a block where a tile is one row, a warp where it is eight.

One row a tile is soonest ready; many rows would be as many tiles, of which each costs its fetch and its meeting. From
eight rows on, one for each warp, they come through the ring of the one launch.
``kernels/cuda/teams`` has the text.
"""

from __future__ import annotations

from interlace.core.arguments import check_int
from interlace.kernels.base import check_extents, next_power_of_2, require

#: Rows of a tile at most.
MAX_ROWS = 32
_ITEM_ROWS = 4  # what a tile costs beside its rows, in rows of some 4 KiB
_BLOCK = 4096  # elements that a Triton body holds at once


def select_tile_rows(rows: int, sms: int) -> int:
    """Rows of a tile where there are so many, a power of two: those with which the busiest SM has the least to do.

    1024 rows on 132 SMs are a wave of 128 tiles of 8 rows, which costs as much as 12; tiles of 4 are two waves, or 16.
    """

    def busiest(count: int) -> int:
        tiles = -(-rows // count)
        return -(-tiles // sms) * (count + _ITEM_ROWS)

    return min((1 << n for n in range(MAX_ROWS.bit_length())), key=busiest)


def select_tile(name: str, shape: tuple[int, ...], rows: object) -> tuple[int, int]:
    """Rows of a tile of a matrix, which is whole rows, and the columns that a Triton body takes of them at once.

    Raises:
        ArgumentError, ShapeError: no number, none that a tile can have, or a matrix that 32 bits do not count.
    """
    where = f"op {name!r}"
    count = check_int(rows, where, "rows")
    require(
        1 <= count <= MAX_ROWS and count == next_power_of_2(count),
        f"{where} has tiles of {count} rows; use a power of two of at most {MAX_ROWS}",
    )
    check_extents(where, shape, (count, _BLOCK))
    return count, min(next_power_of_2(shape[1]), _BLOCK // count)
