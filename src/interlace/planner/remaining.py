"""A lower bound on the loads still to come, from a search that forgets which row and which column is which.

Take one chunk of K alone. A pair of a row and a column whose tile is still open must at some moment be held
together. If it is not now, a load must bring it together: loading a row brings at most as many pairs together
as columns are held. So with ``a`` rows and ``b`` columns held, x loads of rows and y loads of columns bring
together at most

    most(a, b, x, y) = max of  b + most(a + 1, b, x - 1, y)        a row comes into free space
                               b + most(a, b, x - 1, y)            a row comes for a row
                               b - 1 + most(a + 1, b - 1, x - 1, y)   a row comes for a column
                               and the same three for a column,

and the loads to come are at least the least x + y with most(a, b, x, y) >= the pairs not held together,
x >= the open rows not held and y >= the open columns not held. Chunks share no unit, so their bounds add.

Example, 3 x 3 tiles and three units, nothing held: 9 pairs, x >= 3, y >= 3. Two columns, then rows, bring
0, 0, 2, 2, 2 pairs together; the third column comes for the other row's place and brings 1, then a row in the
place of a column brings 1, and once more: most(0, 0, 4, 3) = 8 at best is under 9 and most(0, 0, 5, 3) = 10.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.planner.states import Shape, chunk_is_done, tile_in_progress

Table = NDArray[np.uint8]
"""Least loads by [rows held, columns held, open rows not held, open columns not held, pairs not held together]."""


@njit(cache=True)
def table(rows: int, columns: int, capacity: int) -> Table:
    """The bound for every count; 255 where a count cannot occur."""
    tiles = rows * columns
    most = np.zeros((rows + 1, columns + 1, tiles + 1, tiles + 1), np.int64)
    for x in range(tiles + 1):
        for y in range(tiles + 1):
            for a in range(min(rows, capacity) + 1):
                for b in range(min(columns, capacity - a) + 1):
                    best = 0
                    if x > 0:
                        best = max(best, b * (a > 0) + most[a, b, x - 1, y])
                        if a < rows and a + b < capacity:
                            best = max(best, b + most[a + 1, b, x - 1, y])
                        if a < rows and b > 0:
                            best = max(best, b - 1 + most[a + 1, b - 1, x - 1, y])
                    if y > 0:
                        best = max(best, a * (b > 0) + most[a, b, x, y - 1])
                        if b < columns and a + b < capacity:
                            best = max(best, a + most[a, b + 1, x, y - 1])
                        if b < columns and a > 0:
                            best = max(best, a - 1 + most[a - 1, b + 1, x, y - 1])
                    most[a, b, x, y] = best
    least = np.full((rows + 1, columns + 1, rows + 1, columns + 1, tiles + 1), 255, np.uint8)
    # suffix[x, y, e]: the least sum over all counts of at least x and y that bring e pairs together.
    suffix = np.full((tiles + 2, tiles + 2, tiles + 1), 255, np.uint8)
    for a in range(rows + 1):
        for b in range(columns + 1):
            for x in range(tiles, -1, -1):
                for y in range(tiles, -1, -1):
                    for e in range(tiles + 1):
                        enough = x + y if most[a, b, x, y] >= e else 255
                        suffix[x, y, e] = min(enough, suffix[x + 1, y, e], suffix[x, y + 1, e])
            for x in range(rows + 1):
                for y in range(columns + 1):
                    for e in range(tiles + 1):
                        least[a, b, x, y, e] = suffix[x, y, e]
    return least


@njit(cache=True)
def remaining(shape: Shape, least: Table, visited: int, progress: int, units: Ints, held: int) -> int:
    """Loads that a state still needs at the least."""
    total = 0
    every_column = (1 << shape.columns) - 1
    underway = tile_in_progress(shape, progress)
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
        if underway >= 0 and chunk_is_done(shape, progress, chunk):
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
            apart += _ones(tiles)
        b = _ones(open_columns & columns_held)
        away_columns = _ones(open_columns & ~columns_held)
        total += least[a, b, away_rows, away_columns, apart]
    return total


@njit(cache=True)
def _ones(mask: int) -> int:
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count
