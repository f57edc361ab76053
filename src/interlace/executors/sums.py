"""Where the one launch keeps what parts of split tiles leave for each other.

A row is 16 bytes of each thread of a warpgroup. Each op takes as many of them as its sums need; of a tile the part that
adds the others to its own takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from interlace.executors.table import Table

#: float32 elements of a row, the unit of column ``slot``.
ROW_FLOATS = 4 * 128


def with_sums(table: Table, sums: Sequence[int]) -> Table:
    """The same with rows for slots, and of items the first of those in which sums lie.

    Of a part that leaves its sums they are its own, of the last part in the plan's sequence those of all others, in the
    order of k.

    Args:
        table: whose parts wait for each other.
        sums: float32 elements of a partial sum of each op; 0 where none is split.
    """
    items = table.items
    rows = np.flatnonzero(items["parts"] > 1)
    closes = items["split"][rows] < 0
    tile = np.where(closes, ~items["split"][rows], items["split"][rows])
    by_tile = np.lexsort((items["part"][rows], closes, tile))
    rows, closes = rows[by_tile], closes[by_tile]
    size = (np.array(sums, np.int64) // ROW_FLOATS)[items["op"][rows]]
    ends = np.cumsum(np.where(closes, 0, size))
    items["slot"][rows] = ends - np.where(closes, items["parts"][rows] - 1, 1) * size
    return replace(table, slots=int(ends[-1]) if len(ends) else 0)
