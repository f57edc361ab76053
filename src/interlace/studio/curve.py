"""Loads of a path from memory as a function of the size of the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from interlace.studio.game import GameOptions, Path, Unit, count_load_bytes, find_named_path
from interlace.studio.link import Game

#: Maximum numbers of drawn sizes, and of touches in their replays: as many as in ten replays of the longest path.
_MAX_SIZES = 40
_MAX_TOUCHES = 10 << 14


def compute_curve(game: Game) -> dict[str, Any]:
    """Return sizes of the cache, and the bytes that the path so far, and the ghost, load at each."""
    path = game.path[: game.at]
    sizes = _select_sizes(game.options, path)
    curves = {"path": count_load_bytes(game.options, path, sizes)}
    if game.ghost:
        ghost = find_named_path(game.options.grid, game.ghost)[: game.at]
        curves["ghost"] = count_load_bytes(game.options, ghost, sizes)
    bounds = [replace(game.options, capacity=size).bounds for size in sizes]
    return {
        "sizes": sizes,
        "bytes": [replace(game.options, capacity=size).capacity_bytes for size in sizes],
        "curves": curves,
        "safe": [safe.bytes for safe, _ in bounds],
        "leading": [leading.bytes for _, leading in bounds],
    }


def _select_sizes(options: GameOptions, path: Path) -> list[int]:
    """Return sizes from the smallest possible one to all panels, in the unit of the options."""
    grid = options.grid
    least, most = {
        Unit.PANELS: (-(-2 // grid.chunks), grid.rows + grid.columns),
        Unit.TILES: (2, grid.units),
        Unit.BYTES: (2 * max(options.sizes), max(sum(options.sizes), 2 * max(options.sizes))),
    }[options.unit]
    most = max(most, least)
    count = min(_MAX_SIZES, max(2, _MAX_TOUCHES // max(1, len(path) * grid.chunks)), most - least + 1)
    return sorted({*np.linspace(least, most, count).astype(int).tolist(), min(max(options.capacity, least), most)})
