"""Partial orders of a grid, advanced together by the beam search (LRU).

Each walker has its open tiles and the contents of its cache. The open tiles are bits of a 64-bit word: for each row the
columns, and for each column the rows, that it has still to visit together. The grid therefore has at most 64 rows and
64 columns. The units are sorted from the last touched to the first, with -1 for one that no open tile needs.

    2 x 3 tiles, capacity 3, after (0, 0), (0, 1):   open rows  100, 111   open columns  10, 10, 11
                                                     units      column 1, row 0, column 0

``estimate`` estimates the loads that a walker still needs. If units stream past g resident units of the other kind,
each load brings g pairs of a row and a column together, and each of those g units brought one together when it was
loaded. With u rows and v columns still to load and e pairs not yet together, the estimate is

    v + max(u, (e - v) / g)  loads, or the same with rows and columns exchanged, whichever is less.

In a cache of c panels, LRU keeps about g = c - 2 of them, next to the one that streams and its predecessor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import inner_njit
from interlace.graph.access import Ints
from interlace.orders.states import mix

Words = NDArray[np.uint64]

MAX_PANELS = 64
HITS, PARTNERS, PANELS = 16, 4, 16
"""Limits on a walker's moves: tiles that need no load, new partners of one panel, and panels that get new partners."""
TRIES = HITS + PARTNERS * PANELS


class SearchSize(NamedTuple):
    """Sizes of the grid and the cache; all integers, so that compiled code accepts it."""

    rows: int
    columns: int
    chunks: int
    capacity: int


class Walkers(NamedTuple):
    """Walkers, one per row.

    Attributes:
        open: tiles still to visit of each panel, rows before columns, as bits.
        units, held: contents of the cache; the first ``held`` entries count.
        cost: loads so far.
        seed: family in which the walker originated.
        followed: number of tiles before it left that family's order.
    """

    open: Words
    units: Ints
    held: Ints
    cost: Ints
    seed: Ints
    followed: Ints


class Scratch(NamedTuple):
    """Scratch space for one walker.

    Attributes:
        tiles: tiles that it tries.
        units: contents of its cache after a tile.
        panels, is_held: held panels, and for each panel whether it is held.
        columns_held: held columns of each chunk, as bits.
        colour, spread: colours of the panels.
    """

    tiles: Ints
    units: Ints
    panels: Ints
    is_held: NDArray[np.bool_]
    columns_held: Words
    colour: Words
    spread: Words

    @staticmethod
    def allocate(size: SearchSize) -> Scratch:
        """Allocate the space."""
        panels = size.rows + size.columns
        return Scratch(
            tiles=np.empty(TRIES, np.int64),
            units=np.empty(size.capacity, np.int64),
            panels=np.empty(size.capacity, np.int64),
            is_held=np.empty(panels, np.bool_),
            columns_held=np.empty(size.chunks, np.uint64),
            colour=np.empty(panels, np.uint64),
            spread=np.empty(panels, np.uint64),
        )


def make_walkers(size: SearchSize, count: int) -> Walkers:
    """Return walkers that have visited nothing; the seed of each is its row number."""
    panels = np.full((count, size.rows + size.columns), (1 << size.columns) - 1, np.uint64)
    panels[:, size.rows :] = (1 << size.rows) - 1
    numbers = [np.zeros(count, np.int64) for _ in range(4)]
    numbers[2][:] = np.arange(count)
    return Walkers(panels, np.zeros((count, size.capacity), np.int64), *numbers)


@inner_njit
def touch_all(size: SearchSize, walkers: Walkers, walker: int, tile: int, way: int, units: Ints) -> tuple[int, int]:
    """Write the contents of the cache after a tile to ``units``; return how many entries count, and the loads.

    ``way`` is 1 for the column first, plus 2 for chunks from the last to the first.
    """
    row, column = tile // size.columns, size.rows + tile % size.columns
    held, loads = walkers.held[walker], 0
    for i in range(held):
        units[i] = walkers.units[walker, i]
    for step in range(2 * size.chunks):
        chunk = size.chunks - 1 - step // 2 if way // 2 else step // 2
        unit = (row if step % 2 == way % 2 else column) * size.chunks + chunk
        place = 0
        while place < held and units[place] != unit:
            place += 1
        if place == held:
            loads += 1
            held = min(held + 1, size.capacity)
            place = held - 1
        for i in range(place, 0, -1):
            units[i] = units[i - 1]
        units[0] = unit
    counted = 0
    for i in range(held):
        panel = units[i] // size.chunks
        if panel in (row, column) and _count_ones(walkers.open[walker, panel]) == 1:
            units[i] = -1  # this tile was its last
        if units[i] >= 0:
            counted = i + 1
    return counted, loads


@inner_njit
def visit(
    size: SearchSize, before: Walkers, walker: int, tile: int, way: int, after: Walkers, into: int, units: Ints
) -> None:
    """Write the walker after one more tile; its seed does not change."""
    held, loads = touch_all(size, before, walker, tile, way, units)
    row, column = tile // size.columns, tile % size.columns
    for panel in range(size.rows + size.columns):
        after.open[into, panel] = before.open[walker, panel]
    after.open[into, row] ^= np.uint64(1) << np.uint64(column)
    after.open[into, size.rows + column] ^= np.uint64(1) << np.uint64(row)
    for i in range(held):
        after.units[into, i] = units[i]
    after.held[into] = held
    after.cost[into] = before.cost[walker] + loads
    after.seed[into], after.followed[into] = before.seed[walker], before.followed[walker]


@inner_njit
def estimate(
    size: SearchSize, walkers: Walkers, walker: int, tile: int, units: Ints, held: int, columns_held: Words
) -> float:
    """Estimate the loads to come once ``tile`` is visited and the cache holds ``units``."""
    open_ = walkers.open[walker]
    row, column = tile // size.columns, size.rows + tile % size.columns
    for chunk in range(size.chunks):
        columns_held[chunk] = 0
    rows_to_come = columns_to_come = tiles = 0
    for panel in range(size.rows):
        left = _count_ones(open_[panel]) - (panel == row)
        tiles += left
        rows_to_come += size.chunks * (left > 0)
    for panel in range(size.rows, size.rows + size.columns):
        columns_to_come += size.chunks * (_count_ones(open_[panel]) > (panel == column))
    for i in range(held):
        panel = units[i] // size.chunks
        if panel >= size.rows:
            columns_held[units[i] % size.chunks] |= np.uint64(1) << np.uint64(panel - size.rows)
            columns_to_come -= 1
    apart = tiles * size.chunks
    for i in range(held):
        panel = units[i] // size.chunks
        if 0 <= panel < size.rows and units[i] >= 0:
            together = open_[panel] & columns_held[units[i] % size.chunks]
            apart -= _count_ones(together) - (panel == row and together >> np.uint64(column - size.rows) & np.uint64(1))
            rows_to_come -= 1
    panels = size.capacity / size.chunks
    gain = max(1.0, min(2.0, panels - 1.0), panels - 2.0)
    return min(
        columns_to_come + max(rows_to_come, (apart - columns_to_come) / gain),
        rows_to_come + max(columns_to_come, (apart - rows_to_come) / gain),
    )


@inner_njit
def list_tries(size: SearchSize, walkers: Walkers, walker: int, scratch: Scratch) -> int:
    """Write the tiles that a walker tries next, and return their number; tiles that need no load come first.

    Of equivalent panels (nothing held, the same tiles open), only one is tried.
    """
    rows, held = size.rows, walkers.held[walker]
    open_ = walkers.open[walker]
    tiles = scratch.tiles
    panels, is_held = scratch.panels, scratch.is_held  # panels in the order in which LRU evicts them
    for panel in range(rows + size.columns):
        is_held[panel] = False
    count = 0
    for i in range(held - 1, -1, -1):
        panel = walkers.units[walker, i] // size.chunks
        if walkers.units[walker, i] >= 0 and not is_held[panel]:
            is_held[panel] = True
            panels[count] = panel
            count += 1
    found = 0
    for i in range(count):
        for j in range(i + 1, count):
            if found < HITS and (panels[i] < rows) != (panels[j] < rows):
                found = _append_tile(size, open_, panels[i], panels[j], tiles, found)
    for i in range(count):
        if PANELS // 2 <= i < count - PANELS // 2:
            continue  # neither about to be dropped nor just touched
        first, last = (rows, rows + size.columns) if panels[i] < rows else (0, rows)
        before = found
        for panel in range(first, last):
            if is_held[panel] or found - before == PARTNERS:
                continue
            new = True
            for k in range(before, found):
                tried = rows + tiles[k] % size.columns if first else tiles[k] // size.columns
                new &= open_[tried] != open_[panel]
            if new:
                found = _append_tile(size, open_, panels[i], panel, tiles, found)
    for tile in range(rows * size.columns):
        if found > 0:
            break
        found = _append_tile(size, open_, tile // size.columns, rows + tile % size.columns, tiles, found)
    return found


@inner_njit
def hash_state(size: SearchSize, walkers: Walkers, walker: int, tile: int, held: int, scratch: Scratch) -> np.uint64:
    """Hash a walker's state after ``tile``, invariant to renaming of rows and columns; other states rarely share it.

    Panels are coloured by what the cache holds of them, and colours are mixed twice along open tiles.
    """
    panels = size.rows + size.columns
    units, colour, spread = scratch.units, scratch.colour, scratch.spread
    for panel in range(panels):
        colour[panel] = 0
    for i in range(held):
        if units[i] >= 0:
            rank = (i + 1) * size.chunks + units[i] % size.chunks
            colour[units[i] // size.chunks] += mix(np.uint64(rank))
    for _ in range(2):
        for panel in range(panels):
            other = size.rows if panel < size.rows else 0
            bits = walkers.open[walker, panel]
            if panel == tile // size.columns:
                bits ^= np.uint64(1) << np.uint64(tile % size.columns)
            elif panel == size.rows + tile % size.columns:
                bits ^= np.uint64(1) << np.uint64(tile // size.columns)
            total = np.uint64(1)
            while bits:
                if bits & np.uint64(1):
                    total += mix(colour[other])
                bits >>= np.uint64(1)
                other += 1
            spread[panel] = mix(colour[panel] + mix(total))
        colour, spread = spread, colour
    of_rows = of_columns = np.uint64(0)
    for panel in range(panels):
        if panel < size.rows:
            of_rows += mix(colour[panel])
        else:
            of_columns += mix(colour[panel])
    # On a square grid, rows are equivalent to columns.
    return of_rows + (of_columns if size.rows == size.columns else mix(of_columns))


@inner_njit
def _append_tile(size: SearchSize, open_: Words, a: int, b: int, tiles: Ints, found: int) -> int:
    """Append the tile of a row and a column, given in either order, if it is open."""
    row, column = min(a, b), max(a, b) - size.rows
    if open_[row] >> np.uint64(column) & np.uint64(1):
        tiles[found] = row * size.columns + column
        found += 1
    return found


@inner_njit
def _count_ones(bits: np.uint64) -> int:
    """Return the number of set bits."""
    bits -= bits >> np.uint64(1) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + (bits >> np.uint64(2) & np.uint64(0x3333333333333333))
    bits = bits + (bits >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int(np.int64(bits * np.uint64(0x0101010101010101) >> np.uint64(56)))
