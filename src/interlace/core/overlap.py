"""Which pieces of memory share bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """Where one thing lies.

    Attributes:
        begin: address of its first byte; 0 for what has no memory.
        nbytes: how many follow, itself included.
        written: whether it is written while others are in use.
        name: what it is called.
    """

    begin: int
    nbytes: int
    written: bool
    name: str

    @property
    def end(self) -> int:
        """Address behind the last byte."""
        return self.begin + self.nbytes


def clash(pieces: Iterable[Piece]) -> tuple[Piece, Piece] | None:
    """Two pieces that share a byte, at least one of them written; None if there are none."""
    last = last_written = Piece(0, 0, False, "")  # of those so far, which end last
    for piece in sorted(p for p in pieces if p.begin and p.nbytes):
        other = last if piece.written else last_written
        if piece.begin < other.end:
            return other, piece
        last = max(last, piece, key=lambda p: p.end)
        if piece.written:
            last_written = max(last_written, piece, key=lambda p: p.end)
    return None
