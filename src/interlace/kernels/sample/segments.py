"""Segments of rows of logits with known maxima, so that most segments need not be read again."""

from __future__ import annotations

#: Columns per maximum and sum of ``segment_stats``.
SEGMENT = 64


def count_segments(columns: int) -> int:
    """Return the number of segments in a row of ``columns`` columns."""
    return -(-columns // SEGMENT)
