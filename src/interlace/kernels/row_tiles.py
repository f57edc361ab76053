"""Assignment of a matrix's rows to groups of threads: the whole block for tiles of one row, a warp per row for eight.

A tile of one row finishes soonest; many rows would need as many tiles, each with the cost of its fetch and its
barriers. From eight rows on, one per warp, rows come through the ring of the megakernel. ``kernels/cuda/row_groups``
has the CUDA source.
"""

from __future__ import annotations

from interlace.core.arguments import check_int
from interlace.kernels.base import check_extents, next_power_of_2, require

#: Upper bound of the rows of a tile.
MAX_ROWS = 32
_ITEM_ROWS = 4  # cost of a tile in addition to its rows, in rows of some 4 KiB
_BLOCK = 4096  # elements that a Triton body holds at once


def select_tile_rows(rows: int, sms: int) -> int:
    """Return the rows of a tile, a power of two that minimises the work of the busiest SM.

    1024 rows on 132 SMs are one wave of 128 tiles of 8 rows, at the cost of 12 rows; tiles of 4 are two waves, cost 16.
    """

    def compute_busiest_cost(count: int) -> int:
        tiles = -(-rows // count)
        return -(-tiles // sms) * (count + _ITEM_ROWS)

    return min((1 << n for n in range(MAX_ROWS.bit_length())), key=compute_busiest_cost)


def select_tile(name: str, shape: tuple[int, ...], rows: object) -> tuple[int, int]:
    """Return the rows of a tile, which spans all columns, and the columns that a Triton body processes at once.

    Raises:
        ArgumentError, ShapeError: an invalid number of rows, or a matrix whose elements 32 bits cannot index.
    """
    where = f"op {name!r}"
    count = check_int(rows, where, "rows")
    require(
        1 <= count <= MAX_ROWS and count == next_power_of_2(count),
        f"{where} has tiles of {count} rows; use a power of two of at most {MAX_ROWS}",
    )
    check_extents(where, shape, (count, _BLOCK))
    return count, min(next_power_of_2(shape[1]), _BLOCK // count)
