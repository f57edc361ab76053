"""States of the exact search, and one key for all states that differ only by renaming rows or columns.

A state consists of the visited tiles and the contents of the cache:

- ``visited``: a bit per tile.
- ``progress``: progress of the tile in progress (only OPT over chunks stops inside a tile).
- ``units``: unit numbers, of which the first ``held`` entries count. For LRU they are sorted from the last touched to
  the first, with -1 for a unit that no open tile needs and that only takes up space. For OPT they are in any sequence,
  and all are needed.

All rows are equivalent, all columns are equivalent, and on a square grid rows are equivalent to columns. Panels are
coloured by what the cache holds of them. Colours are mixed along visited tiles until panels that differ have different
colours, and the panels are sorted by colour. In the following three states of 2 x 3 tiles, the row that was visited
twice was touched last, and before it a column that it was visited with. They get one key:

    visited    0 0 0         1 1 0         0 1 1
               1 0 1         0 0 0         0 0 0
    units      1, 4          0, 3          0, 3      row 1, column 2; row 0, column 1; row 0, column 1
    key        word 0: bits 3 and 5 (row 1 with columns 0 and 2); word 1: 1 + 1 and, 3 bits up, 4 + 1

Colliding colours cost time but never correctness: a key always describes its state completely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints

Words = NDArray[np.uint64]

MAX_TILES = 49
"""Maximum number of tiles: bits of a 64-bit word that remain next to the progress of one tile."""
MAX_UNITS = 255


class SearchShape(NamedTuple):
    """Sizes of a search; all integers, so that compiled code accepts it.

    Attributes:
        rows, columns, chunks: sizes of the grid.
        capacity: units that the cache holds.
        opt: 1 for OPT, 0 for LRU.
        bits: bits of a unit number plus one in a key.
    """

    rows: int
    columns: int
    chunks: int
    capacity: int
    opt: int
    bits: int

    @property
    def words(self) -> int:
        """Number of 64-bit words of a key."""
        return 1 + -(-self.capacity // (63 // self.bits))


class Scratch(NamedTuple):
    """Scratch space of ``make_key``.

    Attributes:
        masks: visited columns of each row and visited rows of each column, as bits.
        place: place of each panel in the key.
        renamed: units of the key.
        colour, mixed: colours of the panels.
    """

    masks: Ints
    place: Ints
    renamed: Ints
    colour: Words
    mixed: Words

    @staticmethod
    def allocate(shape: SearchShape) -> Scratch:
        """Allocate the space."""
        panels = shape.rows + shape.columns
        masks, place = np.empty(panels, np.int64), np.empty(panels, np.int64)
        colour, mixed = np.empty(panels, np.uint64), np.empty(panels, np.uint64)
        return Scratch(masks, place, np.empty(shape.capacity, np.int64), colour, mixed)


@inner_njit
def encode_progress(shape: SearchShape, tile: int, backwards: int, done: int) -> int:
    """Encode the progress of a tile of which ``done`` chunks are computed; 0 means that no tile is in progress."""
    return 1 + (tile * 2 + backwards) * shape.chunks + done


@inner_njit
def get_tile_in_progress(shape: SearchShape, progress: int) -> int:
    """Return the tile in progress, -1 for none."""
    return (progress - 1) // shape.chunks // 2 if progress else -1


@inner_njit
def is_backwards(shape: SearchShape, progress: int) -> int:
    """Return 1 if the tile in progress takes its chunks from the last to the first, else 0."""
    return (progress - 1) // shape.chunks % 2


@inner_njit
def count_chunks_done(shape: SearchShape, progress: int) -> int:
    """Return the number of computed chunks of the tile in progress."""
    return (progress - 1) % shape.chunks


@inner_njit
def is_chunk_done(shape: SearchShape, progress: int, chunk: int) -> bool:
    """True if the tile in progress has computed a chunk."""
    place = shape.chunks - 1 - chunk if is_backwards(shape, progress) else chunk
    return place < count_chunks_done(shape, progress)


@inner_njit
def find_neighbours(shape: SearchShape, visited: int, masks: Ints) -> None:
    """Write the visited columns of each row and the visited rows of each column to ``masks``, as bits."""
    for column in range(shape.columns):
        masks[shape.rows + column] = 0
    for row in range(shape.rows):
        masks[row] = visited >> (row * shape.columns) & ((1 << shape.columns) - 1)
        for column in range(shape.columns):
            masks[shape.rows + column] |= (masks[row] >> column & 1) << row


@cached_njit(allocates=False)
def make_key(
    shape: SearchShape, visited: int, progress: int, units: Ints, held: int, scratch: Scratch, key: Ints, panels: Ints
) -> None:
    """Write a state's key, and for each panel of the key its original panel."""
    masks, place, renamed = scratch.masks, scratch.place, scratch.renamed
    find_neighbours(shape, visited, masks)
    _sort_panels(shape, progress, units, held, masks, panels, scratch.colour, scratch.mixed)
    rows, columns = shape.rows, shape.columns
    for i in range(rows + columns):
        place[panels[i]] = i
    for i in range(len(key)):
        key[i] = 0
    for row in range(rows):
        for column in range(columns):
            x, y = place[row], place[rows + column]
            if x > y:
                x, y = y, x
            tile = x * columns + y - rows
            key[0] |= (masks[row] >> column & 1) << tile
            if row * columns + column == get_tile_in_progress(shape, progress):
                done = count_chunks_done(shape, progress)
                key[0] |= encode_progress(shape, tile, is_backwards(shape, progress), done) << MAX_TILES
    for i in range(held):
        unit = 0
        if units[i] >= 0:
            unit = place[units[i] // shape.chunks] * shape.chunks + units[i] % shape.chunks + 1
        j = i
        while shape.opt and j > 0 and renamed[j - 1] > unit:
            renamed[j] = renamed[j - 1]
            j -= 1
        renamed[j] = unit
    per_word = 63 // shape.bits
    for i in range(held):
        key[1 + i // per_word] |= renamed[i] << (shape.bits * (i % per_word))


@cached_njit(allocates=False)
def unpack(shape: SearchShape, key: Ints, units: Ints) -> tuple[int, int, int]:
    """Return the visited tiles, progress and held count of a key, and write its units to ``units``."""
    per_word = 63 // shape.bits
    held = 0
    for i in range(shape.capacity):
        units[i] = (key[1 + i // per_word] >> (shape.bits * (i % per_word)) & ((1 << shape.bits) - 1)) - 1
        if units[i] >= 0:
            held = i + 1  # entries after the last needed unit count as free
    return key[0] & ((1 << MAX_TILES) - 1), key[0] >> MAX_TILES, held


@inner_njit
def _sort_panels(
    shape: SearchShape, progress: int, units: Ints, held: int, masks: Ints, panels: Ints, colour: Words, mixed: Words
) -> None:
    """Sort rows by colour, then columns by colour; on a square grid the side with the lower colours comes first."""
    rows, count = shape.rows, shape.rows + shape.columns
    for i in range(count):
        colour[i] = 0
    for i in range(held):
        if units[i] >= 0:
            rank = 0 if shape.opt else i + 1
            colour[units[i] // shape.chunks] += mix(np.uint64(2 + units[i] % shape.chunks + shape.chunks * rank))
    underway = get_tile_in_progress(shape, progress)
    if underway >= 0:
        mark = mix(np.uint64(7919 + (progress - 1) % (2 * shape.chunks)))
        colour[underway // shape.columns] += mark
        colour[rows + underway % shape.columns] += mark
    tied = 0
    while tied >= 0:
        for _ in range(2):
            _mix_neighbours(rows, masks, colour, mixed)
            _mix_neighbours(rows, masks, mixed, colour)
        for i in range(count):
            j = i
            while j > (rows if i >= rows else 0) and colour[panels[j - 1]] > colour[i]:
                panels[j] = panels[j - 1]
                j -= 1
            panels[j] = i
        tied = -1
        for i in range(count - 1):
            p, q = panels[i], panels[i + 1]
            # Panels with equal colours and equal visits are interchangeable, so renaming them changes nothing.
            if i + 1 != rows and colour[p] == colour[q] and masks[p] != masks[q]:
                tied = q
        if tied >= 0:
            colour[tied] += np.uint64(1)
    if rows != shape.columns:
        return
    for i in range(rows):
        a, b = colour[panels[i]], colour[panels[rows + i]]
        if a < b:
            return
        if a > b:
            for j in range(rows):
                panels[j], panels[rows + j] = panels[rows + j], panels[j]
            return


@inner_njit
def _mix_neighbours(rows: int, masks: Ints, colour: Words, mixed: Words) -> None:
    """Mix each panel's colour with those of the panels that it was visited with."""
    count = len(colour)
    for panel in range(count):
        first, last = (rows, count) if panel < rows else (0, rows)
        total = np.uint64(1)
        for other in range(first, last):
            if masks[panel] >> (other - first) & 1:
                total += mix(colour[other])
        mixed[panel] = mix(colour[panel] + mix(total))


@inner_njit
def mix(value: np.uint64) -> np.uint64:
    """Return a pseudo-random number (the finaliser of SplitMix64, Steele et al., 2014)."""
    value = (value + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
