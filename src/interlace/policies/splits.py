"""Splits: rules that cut the reductions of an op's tiles into items.

Six tiles of four chunks over four workers, one letter per item:

    WholeTiles()       aaaa bbbb cccc dddd eeee ffff
    SplitK(2)     aagg bbhh ccii ddjj eekk ffll     (all first halves run before all second halves)
    StreamK(4)    aaaa bbcc dddd eeee ffgg hhhh     (parts of six chunks; tiles 1 and 4 lie in two)
    SplitTail(2, 3)   aaaa bbbb cccc dddd eeeg fffh (the ends of the last two tiles come last)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from interlace.core.arguments import check_int, check_int_array
from interlace.core.errors import OrderError
from interlace.graph.access import Ints


class Split(ABC):
    """Rule that cuts the reductions of an op's tiles, taken in their order, into items."""

    @abstractmethod
    def compute_cuts(self, tiles: int, chunks: int) -> Ints:
        """Return where items end apart from tile ends: ascending, in chunks over all tiles laid end to end."""

    def bound_items(self, tiles: int, chunks: int) -> int:
        """Return an upper bound on the number of items."""
        return tiles + len(self.compute_cuts(tiles, chunks))

    def list_items(self, tiles: int, chunks: int) -> tuple[Ints, Ints, Ints]:
        """Return (position of the tile in the order, first chunk, chunk after the last) of each item."""
        ends = np.arange(1, tiles + 1, dtype=np.int64) * chunks
        cuts = check_int_array(self.compute_cuts(tiles, chunks), None, OrderError, f"cuts of {self}")
        if len(cuts) and not 0 <= cuts.min() <= cuts.max() <= tiles * chunks:
            raise OrderError(f"{self} cuts from {cuts.min()} to {cuts.max()}; keep within 0 to {tiles * chunks}")
        edges = np.unique(np.concatenate([np.zeros(1, np.int64), ends, cuts]))
        lo, hi = edges[:-1], edges[1:]
        tile = lo // chunks
        return tile, lo - tile * chunks, hi - tile * chunks

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class WholeTiles(Split):
    """One item per tile."""

    def compute_cuts(self, tiles: int, chunks: int) -> Ints:
        return np.zeros(0, np.int64)


@dataclass(frozen=True)
class SplitK(Split):
    """``parts`` items per tile, equal in size up to one chunk.

    All first parts come before all second parts, because they need the data that the producer writes first.
    """

    parts: int

    def __post_init__(self) -> None:
        if check_int(self.parts, "SplitK", "parts") < 1:
            raise OrderError(f"SplitK({self.parts}); use at least one part")

    def bound_items(self, tiles: int, chunks: int) -> int:
        return tiles * min(self.parts, chunks)

    def compute_cuts(self, tiles: int, chunks: int) -> Ints:
        parts = min(self.parts, chunks)
        inner = np.arange(1, parts, dtype=np.int64) * chunks // parts
        return (np.arange(tiles, dtype=np.int64)[:, None] * chunks + inner).ravel()

    def list_items(self, tiles: int, chunks: int) -> tuple[Ints, Ints, Ints]:
        return _sort_by_begin(*super().list_items(tiles, chunks))


@dataclass(frozen=True)
class StreamK(Split):
    """``parts`` equal contiguous parts of all chunks, regardless of tile boundaries (Osama et al., 2023)."""

    parts: int

    def __post_init__(self) -> None:
        if check_int(self.parts, "StreamK", "parts") < 1:
            raise OrderError(f"StreamK({self.parts}); use at least one part")

    def bound_items(self, tiles: int, chunks: int) -> int:
        return tiles + min(self.parts, tiles * chunks)

    def compute_cuts(self, tiles: int, chunks: int) -> Ints:
        parts = min(self.parts, tiles * chunks)
        return np.arange(1, parts, dtype=np.int64) * (tiles * chunks) // parts


@dataclass(frozen=True)
class SplitTail(Split):
    """One cut in each of the last ``tiles`` tiles of the order, after ``chunks`` chunks; the ends come after all else.

    It suits a last wave that occupies only some workers: those that become free first run the ends.
    """

    tiles: int
    chunks: int

    @staticmethod
    def for_last_wave(tiles: int, chunks: int, workers: int) -> Split:
        """Cut the last wave of an op so that workers that begin its tiles finish together with those that run the ends.

        Returns:
            ``WholeTiles`` if the last wave is full, or its tiles have too few chunks to be cut.
        """
        last = tiles % workers
        ends_each = -(-last // (workers - last))
        begin = chunks * ends_each // (ends_each + 1)
        return SplitTail(last, begin) if last and 0 < begin < chunks else WholeTiles()

    def __post_init__(self) -> None:
        if check_int(self.tiles, "SplitTail", "tiles") < 0 or check_int(self.chunks, "SplitTail", "chunks") < 1:
            raise OrderError(f"SplitTail({self.tiles}, {self.chunks}); cut 0 tiles or more, after 1 chunk or more")

    def compute_cuts(self, tiles: int, chunks: int) -> Ints:
        if self.chunks >= chunks:
            return np.zeros(0, np.int64)
        return np.arange(max(tiles - self.tiles, 0), tiles, dtype=np.int64) * chunks + self.chunks

    def list_items(self, tiles: int, chunks: int) -> tuple[Ints, Ints, Ints]:
        return _sort_by_begin(*super().list_items(tiles, chunks))


def _sort_by_begin(tile: Ints, lo: Ints, hi: Ints) -> tuple[Ints, Ints, Ints]:
    """Sort parts of tiles by where they begin in the reduction."""
    order = np.lexsort((tile, lo))
    return tile[order], lo[order], hi[order]
