"""Detection of memory ranges that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class MemoryRange(NamedTuple):
    """Range of memory of one object.

    Attributes:
        begin: address of the first byte; 0 for an object without memory.
        nbytes: length in bytes.
        is_written: True if the range is written while others are in use.
        name: name of the object.
    """

    begin: int
    nbytes: int
    is_written: bool
    name: str

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.begin + self.nbytes


def find_overlap(ranges: Iterable[MemoryRange]) -> tuple[MemoryRange, MemoryRange] | None:
    """Return two pieces that share a byte, at least one of them written; None if there are none."""
    last = last_written = MemoryRange(0, 0, False, "")  # the pieces so far with the highest end
    for piece in sorted(p for p in ranges if p.begin and p.nbytes):
        other = last if piece.is_written else last_written
        if piece.begin < other.end:
            return other, piece
        last = max(last, piece, key=lambda p: p.end)
        if piece.is_written:
            last_written = max(last_written, piece, key=lambda p: p.end)
    return None
