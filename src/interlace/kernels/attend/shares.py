"""Equal shares of all cached positions, for sequences of mixed length: a table assigns each share to a sequence.

If every sequence is split into equally many parts, the longest one has the longest splits, which determine the time
of the step. This module counts blocks of positions over all sequences and divides them by ``count``, rounded up: a
share has that many blocks of one sequence, and a sequence's last share has the rest. There are at most ``count`` full
shares and one more for each sequence, for any lengths. With 700, 0 and 100 positions, blocks of 64 and 3 shares, 13
blocks make 5 per share, and the table has 3 + 3 rows, the longest shares first:

    row          0        1        2        3        4        5
    sequence     0        0        2        0        1        -1
    from:to      0:320    320:640  0:100    640:700  0:0      0:0

    first        0 of sequence 0, 3 of 1, 4 of 2, 5 after the last
    rows         0 1 3 of sequence 0, 4 of 1, 2 of 2, 5 of none

The share that ends a sequence also includes this step's own key and value. Unused rows have sequence -1. In
longest-first order, items of different length end most nearly together (Graham, 1969).
Source: Sanovar et al., Lean Attention, 2024, whose shares may span sequences and are therefore equal except for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int
from interlace.core.errors import ShapeError
from interlace.graph.ragged import compute_offsets, expand_ranges

#: Columns of the table: sequence, first position, one after the last position.
COLUMNS = 3


def count_table_rows(count: int, batch: int) -> int:
    """Return the number of rows that suffice for the shares of ``batch`` sequences of any lengths."""
    return count + batch


def build_share_table(
    lengths: Sequence[int] | NDArray[np.integer], count: int, block: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Build the table of shares (count + B, 3) of sequences of these lengths (B,), with a CSR index by sequence.

    Args:
        lengths: cached positions of each sequence.
        count: number of shares to aim for.
        block: positions processed at a time; shares begin at multiples of it.

    Returns:
        The table; ``first`` (B + 1,) and ``rows`` (count + B,): rows of sequence b are
        ``rows[first[b]:first[b + 1]]``, in the order of its positions.

    Raises:
        ArgumentError, ShapeError: arguments that are not numbers, or numbers out of range.
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
