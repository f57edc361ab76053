"""Lower bound on the loads still to come, from a relaxation that forgets the identity of rows and columns.

Consider one chunk of K alone. The row and the column of an open tile must be held together at some moment. If they are
not now, a load must bring them together. Loading a row brings together at most as many such pairs as columns are held.
Therefore, from ``a`` rows and ``b`` columns held, x loads of rows and y of columns bring together at most

    most(a, b, x, y) = the maximum of  b + most(a + 1, b, x - 1, y)          a row comes into free space,
                                       b + most(a, b, x - 1, y)              or replaces a row,
                                       b - 1 + most(a + 1, b - 1, x - 1, y)  or replaces a column,
                                       and the same three for a column,

pairs. The loads to come are at least the minimum of x + y with most(a, b, x, y) >= the pairs not held together,
x >= the open rows not held and y >= the open columns not held. Chunks share no unit, so their bounds add up.

Example: 3 x 3 tiles and three units, nothing held, so 9 pairs, x >= 3 and y >= 3. Load two rows, a column, a column in
its place, a column in a row's place, a row in a row's place and another such row. They bring 0, 0, 2, 2, 1, 2 and 2
pairs together. That is most(0, 0, 4, 3) = 9, while most(0, 0, 3, 3) is 7: the bound is 7 loads. The minimum is 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.orders.panels import PanelGrid
from interlace.orders.states import SearchShape, get_tile_in_progress, is_chunk_done

_MAX_ENTRIES = 5 * 10**7  # entries of two bytes

Table = NDArray[np.uint8]
"""Minimum loads by rows held, columns held, open rows not held, open columns not held, pairs not held together."""


def compute_bound_table(rows: int, columns: int, capacity: int) -> Table:
    """Return the bound for every combination of counts; 255 if a combination cannot occur."""
    tiles = rows * columns
    limit = tiles + 1 + rows + columns  # one load for a pair, after the first, and one for each open panel
    least = np.full((rows + 1, columns + 1, rows + 1, columns + 1, tiles + 1), 255, np.uint8)
    _fill_table(rows, columns, capacity, limit, maximise_pairs(rows, columns, capacity, limit), least)
    return least


@cached_njit(allocates=False)
def _fill_table(rows: int, columns: int, capacity: int, limit: int, together: NDArray[np.int16], least: Table) -> None:
    for a in range(min(rows, capacity) + 1):
        for b in range(min(columns, capacity - a) + 1):
            # From many loads to few, so that the last value written is the minimum.
            for loads in range(limit, -1, -1):
                for x in range(loads + 1):
                    for away_rows in range(min(x, rows) + 1):
                        for away_columns in range(min(loads - x, columns) + 1):
                            for apart in range(together[a, b, x, loads - x] + 1):
                                least[a, b, away_rows, away_columns, apart] = loads


def maximise_pairs(rows: int, columns: int, capacity: int, limit: int) -> NDArray[np.int16]:
    """Return the pairs brought together by rows held, columns held, and loads of each (at most ``limit`` in all)."""
    pairs = np.zeros((min(rows, capacity) + 1, min(columns, capacity) + 1, limit + 1, limit + 1), np.int16)
    _fill_most(rows, columns, capacity, limit, pairs)
    return pairs


@cached_njit(allocates=False)
def _fill_most(rows: int, columns: int, capacity: int, limit: int, pairs: NDArray[np.int16]) -> None:
    for x in range(limit + 1):
        for y in range(limit + 1 - x):
            for a in range(min(rows, capacity) + 1):
                for b in range(min(columns, capacity - a) + 1):
                    best = 0
                    if x > 0:
                        best = max(best, b * (a > 0) + pairs[a, b, x - 1, y])
                        if a < rows and a + b < capacity:
                            best = max(best, b + pairs[a + 1, b, x - 1, y])
                        if a < rows and b > 0:
                            best = max(best, b - 1 + pairs[a + 1, b - 1, x - 1, y])
                    if y > 0:
                        best = max(best, a * (b > 0) + pairs[a, b, x, y - 1])
                        if b < columns and a + b < capacity:
                            best = max(best, a + pairs[a, b + 1, x, y - 1])
                        if b < columns and a > 0:
                            best = max(best, a - 1 + pairs[a - 1, b + 1, x, y - 1])
                    pairs[a, b, x, y] = min(best, rows * columns)


def bound_loads(grid: PanelGrid, capacity: int, known: int) -> int:
    """Return a lower bound on the loads of any order of a grid of any size; an order with ``known`` loads exists."""
    held = (min(grid.rows, capacity) + 1) * (min(grid.columns, capacity) + 1)
    limit = known // grid.chunks
    if held * (limit + 1) ** 2 > _MAX_ENTRIES:
        # Every load but the first brings at most capacity - 1 pairs together.
        return max(grid.units, 1 + -(-grid.tiles * grid.chunks // (capacity - 1)))
    pairs = maximise_pairs(grid.rows, grid.columns, capacity, limit)[0, 0]
    enough = (
        x + y
        for x in range(grid.rows, limit + 1)
        for y in range(grid.columns, limit + 1 - x)
        if pairs[x, y] == grid.tiles
    )
    return min(enough) * grid.chunks


@cached_njit(allocates=False)
def bound_remaining(shape: SearchShape, least: Table, visited: int, progress: int, units: Ints, held: int) -> int:
    """Return a lower bound on the loads that a state still needs."""
    total = 0
    every_column = (1 << shape.columns) - 1
    underway = get_tile_in_progress(shape, progress)
    for chunk in range(shape.chunks):
        rows_held = columns_held = 0
        for i in range(held):
            panel = units[i] // shape.chunks
            if units[i] < 0 or units[i] % shape.chunks != chunk:
                continue
            if panel < shape.rows:
                rows_held |= 1 << panel
            else:
                columns_held |= 1 << (panel - shape.rows)
        finished = visited
        if underway >= 0 and is_chunk_done(shape, progress, chunk):
            finished |= 1 << underway
        a = away_rows = apart = open_columns = 0
        for row in range(shape.rows):
            tiles = every_column & ~(finished >> (row * shape.columns))
            open_columns |= tiles
            if tiles == 0:
                continue
            if rows_held >> row & 1:
                a += 1
                tiles &= ~columns_held
            else:
                away_rows += 1
            apart += _count_ones(tiles)
        b = _count_ones(open_columns & columns_held)
        away_columns = _count_ones(open_columns & ~columns_held)
        total += least[a, b, away_rows, away_columns, apart]
    return total


@inner_njit
def _count_ones(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count
