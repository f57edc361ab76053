"""Row indices of positions in a paged cache, in Triton; ``kernels/pages`` describes the layout."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_row(table, sequence, head, at, HEADS: tl.constexpr, CAPACITY, PAGE: tl.constexpr, PAGES):
    """Return the row of a head's position in a cache viewed as one matrix of D columns.

    The result is int64, negative without a page.
    """
    sequence, at = tl.cast(sequence, tl.int64), tl.cast(at, tl.int64)  # the interpreter's loop indices are Python ints
    if PAGE == 0:
        row = (sequence * HEADS + head) * CAPACITY + at
    else:
        entry = tl.load(table + sequence * tl.cdiv(CAPACITY, PAGE) + at // PAGE)
        page = tl.minimum(entry, PAGES - 1).to(tl.int64)
        row = tl.where(page < 0, -1, (page * HEADS + head) * PAGE + at % PAGE)
    return row
