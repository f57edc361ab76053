"""Detection of memory ranges that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """Range of memory of one object.

    Attributes:
        begin: address of the first byte; 0 for an object without memory.
        nbytes: length in bytes.
        written: True if the range is written while others are in use.
        name: name of the object.
    """

    begin: int
    nbytes: int
    written: bool
    name: str

    @property
    def end(self) -> int:
        """Address after the last byte."""
        return self.begin + self.nbytes


def clash(pieces: Iterable[Piece]) -> tuple[Piece, Piece] | None:
    """Return two pieces that share a byte, at least one of them written; None if there are none."""
    last = last_written = Piece(0, 0, False, "")  # the pieces so far with the highest end
    for piece in sorted(p for p in pieces if p.begin and p.nbytes):
        other = last if piece.written else last_written
        if piece.begin < other.end:
            return other, piece
        last = max(last, piece, key=lambda p: p.end)
        if piece.written:
            last_written = max(last_written, piece, key=lambda p: p.end)
    return None
