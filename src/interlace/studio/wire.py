"""Messages of the page: strict conversion of JSON to typed values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from interlace.core.dtypes import DTYPES
from interlace.core.errors import StudioError
from interlace.orders.panels import EvictionPolicy
from interlace.studio.game import GameOptions, GamePosition, Unit, find_named_path, list_named_orders, play
from interlace.studio.link import Game, decode_path, encode_game, encode_path

_NAMES: Mapping[str, Mapping[str, Any]] = {
    "unit": {unit.value: unit for unit in Unit},
    "cache": {cache.value: cache for cache in EvictionPolicy},
    "dtype": {dtype.name: dtype for dtype in DTYPES},
}


def parse_game(data: object) -> Game:
    """Return the game of a request: ``options``, ``path``, ``at`` and ``ghost``, each with a default.

    Raises:
        StudioError: anything else, or a game that makes no sense.
    """
    given = check_members(data, "a request", ("options", "path", "at", "ghost"))
    options = parse_options(given.get("options", {}))
    steps = given.get("path", [])
    if not isinstance(steps, list) or len(steps) > options.grid.tiles or not all(_is_int(step) for step in steps):
        raise StudioError(f"path is no list of at most {options.grid.tiles} numbers; send 4 * tile + way of each")
    path = decode_path(options.grid, steps)
    at, ghost = given.get("at", len(path)), parse_ghost(given)
    if not _is_int(at) or not 0 <= at <= len(path):
        raise StudioError(f"at is {at!r}; use 0 to {len(path)}, the steps of the path")
    return Game(options, path, at, ghost)


def parse_ghost(given: Mapping[str, Any]) -> str:
    """Return the name of the ghost of a request, "" for none. Raises StudioError for what names no order."""
    ghost = given.get("ghost", "")
    if not (isinstance(ghost, str) and ghost.isascii()):
        raise StudioError("ghost is no name of an order; send a text of ASCII letters")
    return ghost


def encode_json(data: Any) -> bytes:
    """Return data as JSON in UTF-8, with U+FFFD for lone surrogates, which names in files may hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def parse_options(data: object) -> GameOptions:
    """Return options by name; missing ones have their defaults. Raises StudioError."""
    given = check_members(data, "options", [field.name for field in fields(GameOptions)])
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NAMES:
            if not isinstance(value, str) or value not in _NAMES[name]:
                raise StudioError(f"{name} is {value!r}; use one of {', '.join(_NAMES[name])}")
            made[name] = _NAMES[name][value]
        elif _is_int(value):
            made[name] = value
        else:
            raise StudioError(f"{name} is {value!r}; use a whole number")
    return GameOptions(**made)


def check_members(data: object, what: str, known: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Return the members of a JSON object. Raises StudioError for another value or an unknown member."""
    if not isinstance(data, dict):
        raise StudioError(f"{what} is {type(data).__name__}; send an object with {', '.join(known)}")
    for name in data:
        if name not in known:
            raise StudioError(f"{what} has a member {str(name)[:40]!r}; use {', '.join(known)}")
    return data


def format_options(options: GameOptions) -> dict[str, Any]:
    """Return options in the form that ``parse_options`` takes."""
    values = {field.name: getattr(options, field.name) for field in fields(GameOptions)}
    return {
        **values,
        "unit": options.unit.value,
        "cache": options.cache.value,
        "dtype": options.dtype.name,
    }


def format_game(game: Game) -> dict[str, Any]:
    """Return a game in the form that ``parse_game`` takes."""
    return {
        "options": format_options(game.options),
        "path": encode_path(game.options.grid, game.path),
        "at": game.at,
        "ghost": game.ghost,
    }


def format_setting(options: GameOptions) -> dict[str, Any]:
    """Return the constants of a game: the grid, the bounds, the names of orders."""
    grid = options.grid
    safe, leading = options.bounds
    return {
        "shape": f"{grid.rows} {grid.columns}",
        "rows": grid.rows,
        "columns": grid.columns,
        "chunks": grid.chunks,
        "capacity_bytes": options.capacity_bytes,
        "panel_bytes": [
            sum(options.sizes[panel * grid.chunks : (panel + 1) * grid.chunks])
            for panel in range(grid.rows + grid.columns)
        ],
        "least_loads": grid.units,
        "safe_bytes": safe.bytes,
        "leading_bytes": leading.bytes,
        "source": safe.source,
        "orders": list(list_named_orders(grid)),
    }


def format_position(game: Game) -> dict[str, Any]:
    """Return the position of a game after its steps, and that of the order that runs as its ghost."""
    taken = game.path[: game.at]
    shown = {"at": game.at, "link": encode_game(game), **_format_position(play(game.options, taken))}
    if game.ghost:
        path = find_named_path(game.options.grid, game.ghost)
        ghost = play(game.options, path[: game.at])
        shown["ghost"] = {
            "path": encode_path(game.options.grid, path),
            "loads": ghost.loads,
            "hits": ghost.touches - ghost.loads,
            "load_bytes": ghost.load_bytes,
        }
    return shown


def _format_position(position: GamePosition) -> dict[str, Any]:
    return {
        "touches": position.touches,
        "loads": position.loads,
        "hits": position.touches - position.loads,
        "load_bytes": position.load_bytes,
        "hit_bytes": position.touched_bytes - position.load_bytes,
        "costs": position.costs,
        "loads_of": position.loads_of,
        "last": position.last,
        "held": [[held.panel, held.units] for held in position.cached],
        "used": position.used_capacity,
        "next_out": position.next_evicted,
    }


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
