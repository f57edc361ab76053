"""Equal shares of all cached positions together, for sequences of mixed length: a table says whose each share is.

Where each sequence is split alike, the longest one has the longest splits, and the step lasts as long as these. Here
blocks of positions are counted over all sequences, and a share has as many of one sequence as there are for each of
``count`` shares, rounded up; the last of a sequence has what is left. So there are at most ``count`` full ones and one
more for each sequence, whatever the lengths are. With 700, 0 and 100 positions, blocks of 64 and 3 shares, 13 blocks
make 5 to a share, and the table has 3 + 3 rows, the longest shares first:

    row          0        1        2        3        4        5
    sequence     0        0        2        0        1        -1
    from:to      0:320    320:640  0:100    640:700  0:0      0:0
    first        0 of sequence 0, 3 of 1, 4 of 2, 5 behind the last
    rows         0 1 3 of sequence 0, 4 of 1, 2 of 2, 5 of none

The share that ends a sequence also has this step's own key and value. Rows that are left over name no sequence, -1.
Longest first is the order in which items of unlike length end most nearly together (Graham, 1969).
Source: Sanovar et al., Lean Attention, 2024, whose shares may span sequences and so are equal but for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int
from interlace.core.errors import ShapeError
from interlace.graph.ragged import compute_offsets, expand_ranges

#: Columns of the table: sequence, first position, one after the last.
COLUMNS = 3


def count_table_rows(count: int, batch: int) -> int:
    """Rows that hold the shares of any lengths of so many sequences."""
    return count + batch


def build_share_table(
    lengths: Sequence[int] | NDArray[np.integer], count: int, block: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The table of shares (count + B, 3) of sequences of these lengths (B,), and where it has which.

    Args:
        lengths: cached positions of each.
        count: shares that are wanted.
        block: positions that are taken at a time; shares begin at multiples of so many.

    Returns:
        The table; ``first`` (B + 1,) and ``rows`` (count + B,): rows of sequence b are ``rows[first[b]:first[b + 1]]``,
        in the order of its positions.

    Raises:
        ArgumentError, ShapeError: a number that is none, or below what it counts.
    """
    for name, number in (("count", count), ("block", block)):
        if check_int(number, "build_share_table", name) < 1:
            raise ShapeError(f"build_share_table has {name} {number}; use a positive number")
    of = np.asarray(lengths, np.int64)
    if of.ndim != 1 or (of < 0).any():
        raise ShapeError(f"build_share_table has lengths {of.tolist()}; give one, from 0, for each sequence")
    blocks = -(-of // block)
    each = max(-(-int(blocks.sum()) // count), 1) * block
    parts = np.maximum(-(-of // each), 1)
    table = np.zeros((count_table_rows(count, len(of)), COLUMNS), np.int32)
    table[:, 0] = -1
    sequence = np.repeat(np.arange(len(of)), parts)
    low = expand_ranges(np.zeros(len(of), np.int64), parts) * each
    table[: len(low)] = np.stack([sequence, low, np.minimum(low + each, of[sequence])], axis=1)
    order = np.lexsort((table[:, 0] < 0, table[:, 1] - table[:, 2]))
    rows = np.empty(len(order), np.int32)
    rows[order] = np.arange(len(order))
    return table[order], compute_offsets(parts).astype(np.int32), rows
