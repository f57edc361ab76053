"""Rows of logits in pieces, of each of which the largest is known: most need not be read again."""

from __future__ import annotations

#: Columns of which ``outline`` leaves the largest logit and a sum.
SEGMENT = 64


def count_segments(columns: int) -> int:
    """Of a row of so many columns."""
    return -(-columns // SEGMENT)
