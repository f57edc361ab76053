"""Moves of the exact search: the successors of a state.

Under LRU there is no choice once a tile is named. A move is therefore a whole tile: which one, whether the row's or the
column's unit of each pair comes first, and in which direction it takes its chunks.

OPT chooses what to evict, so a move is a load of one unit in the place of one other. These moves suffice: a load may
wait until a tile needs it; a tile whose units are all held is visited at once, since that takes no space; and a unit
that no open tile needs is dropped at once. With chunks, beginning a tile is a separate move, because a tile once begun
is finished before the next.

    2 x 2 tiles, capacity 3, OPT; row 0, column 0 and column 1 are held, so that (0, 0) and (0, 1) are
    visited and row 0 is dropped. One move is left: load row 1 into the free place. It visits (1, 0), (1, 1).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.orders.states import (
    SearchShape,
    count_chunks_done,
    encode_progress,
    find_neighbours,
    get_tile_in_progress,
    is_backwards,
    is_chunk_done,
)

_NONE: Any = np.int64(0)  # a literal 0 would compile the called function once more


class Moves(NamedTuple):
    """Successors of one state, one per row.

    Attributes:
        found: number of filled rows, in an array of one.
        visited, progress, units, held: state after the move.
        cost: loads of the move.
        tile: tile that the move visits by name, -1 for none; other tiles that ``visited`` gained needed no load.
        way: touch order of that tile: 1 for the column first, plus 2 for chunks backwards.
        masks, counted, to_try: scratch space, an entry per panel.
    """

    found: Ints
    visited: Ints
    progress: Ints
    units: Ints
    held: Ints
    cost: Ints
    tile: Ints
    way: Ints
    masks: Ints
    counted: Ints
    to_try: Ints


def allocate_moves(shape: SearchShape) -> Moves:
    """Allocate space for the moves of any state."""
    panels = shape.rows + shape.columns
    tiles = shape.rows * shape.columns
    most = tiles * 2 + panels * shape.chunks * shape.capacity if shape.opt else tiles * 4
    visited, progress, held, cost, tile, way = (np.zeros(most, np.int64) for _ in range(6))
    units = np.zeros((most, shape.capacity), np.int64)
    masks, counted, to_try = (np.zeros(panels, np.int64) for _ in range(3))
    return Moves(np.zeros(1, np.int64), visited, progress, units, held, cost, tile, way, masks, counted, to_try)


@cached_njit(allocates=False)
def find_moves(shape: SearchShape, visited: int, progress: int, units: Ints, held: int, out: Moves) -> None:
    """Write all moves of a state."""
    out.found[0] = 0
    if progress:
        tile = get_tile_in_progress(shape, progress)
        row, column = _get_pair(shape, tile, is_backwards(shape, progress), count_chunks_done(shape, progress))
        if _contains(units, held, row):
            row, column = column, row
        _load(shape, visited, progress, units, held, row, column, out)
        return
    to_try = out.to_try
    _find_panels(shape, visited, units, held, out)
    for tile in range(shape.rows * shape.columns):
        if visited >> tile & 1:
            continue
        if shape.opt:
            _begin(shape, visited, tile, units, held, out)
        elif to_try[tile // shape.columns] and to_try[shape.rows + tile % shape.columns]:
            _visit(shape, visited, tile, units, held, out)
    for panel in range(shape.rows + shape.columns if shape.opt else 0):
        if to_try[panel] and _has_open_tiles(shape, visited, panel):
            for end in range(1 if shape.chunks == 1 else 2):
                unit = panel * shape.chunks + end * (shape.chunks - 1)
                if not _contains(units, held, unit):
                    _load(shape, visited, progress, units, held, unit, unit, out)


@inner_njit
def _append(visited: int, progress: int, units: Ints, held: int, out: Moves) -> None:
    """Append the state itself as a move without cost."""
    at = out.found[0]
    out.visited[at], out.progress[at], out.held[at], out.cost[at] = visited, progress, held, 0
    out.tile[at] = out.way[at] = -1
    for i in range(held):
        out.units[at, i] = units[i]
    out.found[0] = at + 1


@inner_njit
def _visit(shape: SearchShape, visited: int, tile: int, units: Ints, held: int, out: Moves) -> None:
    """LRU: append the visit of a whole tile, once per touch order."""
    for way in range(2 if shape.chunks == 1 else 4):
        at = out.found[0]
        _append(visited | 1 << tile, _NONE, units, held, out)
        out.tile[at], out.way[at] = tile, way
        for step in range(2 * shape.chunks):
            pair = _get_pair(shape, tile, way // 2, step // 2)
            _touch(shape.capacity, pair[(step + way) % 2], out, at)
        _clear_unneeded(shape, out, at)


@inner_njit
def _touch(capacity: int, unit: int, out: Moves, at: int) -> None:
    """LRU: move a unit to the front of a move's list, and count it if it has to be loaded."""
    place = 0
    while place < out.held[at] and out.units[at, place] != unit:
        place += 1
    if place == out.held[at]:
        out.cost[at] += 1
        out.held[at] = min(place + 1, capacity)
        place = out.held[at] - 1
    for i in range(place, 0, -1):
        out.units[at, i] = out.units[at, i - 1]
    out.units[at, 0] = unit


@inner_njit
def _clear_unneeded(shape: SearchShape, out: Moves, at: int) -> None:
    """LRU: write -1 for units that no open tile needs; at the end of the list they count as free."""
    held = 0
    for i in range(out.held[at]):
        unit = out.units[at, i]
        if unit >= 0 and _has_open_tiles(shape, out.visited[at], unit // shape.chunks):
            held = i + 1
        else:
            out.units[at, i] = -1
    out.held[at] = held


@inner_njit
def _begin(shape: SearchShape, visited: int, tile: int, units: Ints, held: int, out: Moves) -> None:
    """OPT: begin a tile whose first pair is held, in either direction; does nothing for panels of one chunk."""
    for backwards in range(0 if shape.chunks == 1 else 2):
        row, column = _get_pair(shape, tile, backwards, _NONE)
        if _contains(units, held, row) and _contains(units, held, column):
            _append(visited, encode_progress(shape, tile, backwards, _NONE), units, held, out)
            _compute_ready(shape, out)


@inner_njit
def _load(
    shape: SearchShape, visited: int, progress: int, units: Ints, held: int, unit: int, pinned: int, out: Moves
) -> None:
    """OPT: load a unit into free space, or else in the place of any unit but ``pinned``."""
    full = held == shape.capacity
    for place in range(held if full else 1):
        if full and units[place] == pinned:
            continue
        at = out.found[0]
        _append(visited, progress, units, held, out)
        out.units[at, place if full else held] = unit
        out.held[at] = held if full else held + 1
        out.cost[at] = 1
        _compute_ready(shape, out)


@inner_njit
def _compute_ready(shape: SearchShape, out: Moves) -> None:
    """OPT: let the last move compute whatever its units allow, and drop units that no open tile needs."""
    at = out.found[0] - 1
    units, held, progress = out.units[at], out.held[at], out.progress[at]
    if progress:
        tile, backwards = get_tile_in_progress(shape, progress), is_backwards(shape, progress)
        done = count_chunks_done(shape, progress)
        while done < shape.chunks:
            row, column = _get_pair(shape, tile, backwards, done)
            if not (_contains(units, held, row) and _contains(units, held, column)):
                break
            done += 1
        progress = encode_progress(shape, tile, backwards, done)
        if done == shape.chunks:
            progress = 0
            out.visited[at] |= 1 << tile
            out.tile[at], out.way[at] = tile, 2 * backwards
    if not progress:
        out.visited[at] |= _find_held_tiles(shape, units, held, out.counted)
    out.progress[at] = progress
    kept = 0
    for i in range(held):
        if _is_needed(shape, out.visited[at], progress, units[i]):
            units[kept] = units[i]
            kept += 1
    out.held[at] = kept


@inner_njit
def _find_held_tiles(shape: SearchShape, units: Ints, held: int, chunks_held: Ints) -> int:
    """Return the tiles all of whose units are held, as bits; ``chunks_held`` is scratch space."""
    for panel in range(shape.rows + shape.columns):
        chunks_held[panel] = 0
    for i in range(held):
        chunks_held[units[i] // shape.chunks] += 1
    found = 0
    for row in range(shape.rows):
        for column in range(shape.columns):
            if chunks_held[row] == shape.chunks and chunks_held[shape.rows + column] == shape.chunks:
                found |= 1 << (row * shape.columns + column)
    return found


@inner_njit
def _is_needed(shape: SearchShape, visited: int, progress: int, unit: int) -> bool:
    """True if an open tile, or the rest of the tile in progress, touches the unit."""
    panel = unit // shape.chunks
    tile = get_tile_in_progress(shape, progress)
    if tile < 0 or (panel != tile // shape.columns and panel != shape.rows + tile % shape.columns):
        return _has_open_tiles(shape, visited, panel)
    return _has_open_tiles(shape, visited | 1 << tile, panel) or not is_chunk_done(shape, progress, unit % shape.chunks)


@inner_njit
def _has_open_tiles(shape: SearchShape, visited: int, panel: int) -> bool:
    """True if a panel has tiles that are not visited."""
    if panel < shape.rows:
        every = (1 << shape.columns) - 1
        return visited >> (panel * shape.columns) & every != every
    for row in range(shape.rows):  # noqa: SIM110 - the loop compiles to less than a generator
        if not visited >> (row * shape.columns + panel - shape.rows) & 1:
            return True
    return False


@inner_njit
def _find_panels(shape: SearchShape, visited: int, units: Ints, held: int, out: Moves) -> None:
    """Mark the panels to try, but not those equivalent to an earlier one (nothing held, same visited tiles)."""
    count = shape.rows + shape.columns
    masks, touched = out.masks, out.counted
    for panel in range(count):
        touched[panel] = 0
    find_neighbours(shape, visited, masks)
    for i in range(held):
        if units[i] >= 0:
            touched[units[i] // shape.chunks] = 1
    for panel in range(count):
        other = shape.rows if panel >= shape.rows else 0
        while other < panel and (touched[panel] or touched[other] or masks[panel] != masks[other]):
            other += 1
        out.to_try[panel] = other == panel


@inner_njit
def _get_pair(shape: SearchShape, tile: int, backwards: int, done: int) -> tuple[int, int]:
    """Return the row unit and the column unit of the chunk that a tile takes after ``done`` others."""
    chunk = shape.chunks - 1 - done if backwards else done
    return (
        tile // shape.columns * shape.chunks + chunk,
        (shape.rows + tile % shape.columns) * shape.chunks + chunk,
    )


@inner_njit
def _contains(units: Ints, held: int, unit: int) -> bool:
    for i in range(held):  # noqa: SIM110
        if units[i] == unit:
            return True
    return False
