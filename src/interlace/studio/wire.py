"""What the page sends and gets: JSON to typed values, strictly, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from interlace.core.dtypes import DTYPES
from interlace.core.errors import StudioError
from interlace.orders.panels import Cache
from interlace.studio.game import Options, Position, Unit, named_orders, named_path, play
from interlace.studio.link import Game, encoded, path_of, steps_of

_NAMES: Mapping[str, Mapping[str, Any]] = {
    "unit": {unit.value: unit for unit in Unit},
    "cache": {cache.value: cache for cache in Cache},
    "dtype": {dtype.name: dtype for dtype in DTYPES},
}


def game_of(data: object) -> Game:
    """The game of a request: ``options``, ``path``, ``at`` and ``ghost``, each with a default.

    Raises:
        StudioError: anything else, or a game that makes no sense.
    """
    given = members(data, "a request", ("options", "path", "at", "ghost"))
    options = options_of(given.get("options", {}))
    steps = given.get("path", [])
    if not isinstance(steps, list) or len(steps) > options.grid.tiles or not all(_whole(step) for step in steps):
        raise StudioError(f"path is no list of at most {options.grid.tiles} numbers; send 4 * tile + way of each")
    path = path_of(options.grid, steps)
    at, ghost = given.get("at", len(path)), ghost_of(given)
    if not _whole(at) or not 0 <= at <= len(path):
        raise StudioError(f"at is {at!r}; use 0 to {len(path)}, the steps of the path")
    return Game(options, path, at, ghost)


def ghost_of(given: Mapping[str, Any]) -> str:
    """Return the name of the ghost of a request, "" for none. Raises StudioError for what names no order."""
    ghost = given.get("ghost", "")
    if not (isinstance(ghost, str) and ghost.isascii()):
        raise StudioError("ghost is no name of an order; send a text of ASCII letters")
    return ghost


def encode_json(data: Any) -> bytes:
    """Return data as JSON in UTF-8, with U+FFFD for lone surrogates, which names in files may hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def options_of(data: object) -> Options:
    """Options by name; those that are left out have their defaults. Raises StudioError."""
    given = members(data, "options", [field.name for field in fields(Options)])
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NAMES:
            if not isinstance(value, str) or value not in _NAMES[name]:
                raise StudioError(f"{name} is {value!r}; use one of {', '.join(_NAMES[name])}")
            made[name] = _NAMES[name][value]
        elif _whole(value):
            made[name] = value
        else:
            raise StudioError(f"{name} is {value!r}; use a whole number")
    return Options(**made)


def members(data: object, what: str, known: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """The members of a JSON object. Raises StudioError for another value, and for a member that is not known."""
    if not isinstance(data, dict):
        raise StudioError(f"{what} is {type(data).__name__}; send an object with {', '.join(known)}")
    for name in data:
        if name not in known:
            raise StudioError(f"{what} has a member {str(name)[:40]!r}; use {', '.join(known)}")
    return data


def shown_options(options: Options) -> dict[str, Any]:
    """Options as ``options_of`` takes them."""
    values = {field.name: getattr(options, field.name) for field in fields(Options)}
    return {
        **values,
        "unit": options.unit.value,
        "cache": options.cache.value,
        "dtype": options.dtype.name,
    }


def shown_game(game: Game) -> dict[str, Any]:
    """A game as ``game_of`` takes it."""
    return {
        "options": shown_options(game.options),
        "path": steps_of(game.options.grid, game.path),
        "at": game.at,
        "ghost": game.ghost,
    }


def shown_setting(options: Options) -> dict[str, Any]:
    """What does not change while a game is played: the grid, the bounds, the names of orders."""
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
        "orders": list(named_orders(grid)),
    }


def shown_position(game: Game) -> dict[str, Any]:
    """Where a game stands after the steps that are taken, and beside it the order that runs as its ghost."""
    taken = game.path[: game.at]
    shown = {"at": game.at, "link": encoded(game), **_position(play(game.options, taken))}
    if game.ghost:
        path = named_path(game.options.grid, game.ghost)
        ghost = play(game.options, path[: game.at])
        shown["ghost"] = {
            "path": steps_of(game.options.grid, path),
            "loads": ghost.loads,
            "hits": ghost.touches - ghost.loads,
            "load_bytes": ghost.load_bytes,
        }
    return shown


def _position(position: Position) -> dict[str, Any]:
    return {
        "touches": position.touches,
        "loads": position.loads,
        "hits": position.touches - position.loads,
        "load_bytes": position.load_bytes,
        "hit_bytes": position.touched_bytes - position.load_bytes,
        "costs": position.costs,
        "loads_of": position.loads_of,
        "last": position.last,
        "held": [[held.panel, held.units] for held in position.held],
        "used": position.used,
        "next_out": position.next_out,
    }


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
