"""Messages of the page of two products: strict conversion of JSON and links to typed values and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from interlace.core.errors import StudioError
from interlace.orders.panels import EvictionPolicy
from interlace.studio.chain import Chain, ChainPosition, check_path, find_accesses, list_chain_orders, play
from interlace.studio.link import CHAIN, pack, read_ghost, read_steps, unpack
from interlace.studio.wire import check_members, parse_ghost

_CACHES = tuple(EvictionPolicy)


@dataclass(frozen=True)
class ChainGame:
    """State that the page shows; like ``link.Game``, with items as steps."""

    chain: Chain
    path: tuple[int, ...] = ()
    at: int = 0
    ghost: str = ""


def parse_chain_game(data: object) -> ChainGame:
    """Return the game of a request: ``options``, ``path``, ``at`` and ``ghost``. Raises StudioError for others."""
    given = check_members(data, "a request", ("options", "path", "at", "ghost"))
    chain = parse_chain(given.get("options", {}))
    path, ghost = given.get("path", []), parse_ghost(given)
    if not isinstance(path, list) or len(path) > chain.items or any(type(item) is not int for item in path):
        raise StudioError(f"path is no list of at most {chain.items} items; send their numbers")
    at = given.get("at", len(path))
    if type(at) is not int or not 0 <= at <= len(path):
        raise StudioError(f"at is {at!r}; use 0 to {len(path)}, the steps of the path")
    check_path(chain, tuple(path))
    return ChainGame(chain, tuple(path), at, ghost)


def parse_chain(data: object) -> Chain:
    """Return options by name; missing ones have their defaults. Raises StudioError."""
    given = check_members(data, "options", [field.name for field in fields(Chain)])
    for name, value in given.items():
        if name == "cache" and value not in [cache.value for cache in EvictionPolicy]:
            raise StudioError(f"cache is {value!r}; use {' or '.join(cache.value for cache in EvictionPolicy)}")
        if name != "cache" and type(value) is not int:
            raise StudioError(f"{name} is {value!r}; use a whole number")
    cache = {"cache": EvictionPolicy(given["cache"])} if "cache" in given else {}
    return Chain(**{**given, **cache})


def format_chain(data: object) -> dict[str, Any]:
    """Return the constants of a chain."""
    chain = parse_chain(check_members(data, "a request", ("options",)).get("options", {}))
    touched, (safe, leading) = find_accesses(chain), chain.bounds
    inputs = {"x": chain.rows * chain.inner, "a": chain.inner * chain.hidden, "b": chain.hidden * chain.columns}
    return {
        "shape": f"{chain.rows} {chain.hidden} {chain.columns} {chain.parts}",
        "tiles": chain.tiles,
        "needs": touched.dependencies,
        "inputs": inputs,
        "unit_bytes": touched.unit_bytes,
        "safe_bytes": safe.bytes,
        "leading_bytes": leading.bytes,
        "source": safe.source,
        "orders": list(list_chain_orders(chain)),
    }


def format_chain_position(data: object) -> dict[str, Any]:
    """Return the position of a chain after its steps, and that of the order that runs as its ghost."""
    game = parse_chain_game(data)
    shown = {"at": game.at, "link": encode_chain(game), **_format_position(play(game.chain, game.path[: game.at]))}
    if game.ghost:
        path = _find_named_path(game.chain, game.ghost)
        shown["ghost"] = {"path": path, **_format_position(play(game.chain, path[: game.at]))}
    return shown


def format_chain_order(data: object) -> dict[str, Any]:
    """Return the path of a named order of both products."""
    given = check_members(data, "a request", ("options", "name"))
    name = given.get("name")
    return {"path": _find_named_path(parse_chain(given.get("options", {})), name if isinstance(name, str) else "")}


def format_chain_game(game: ChainGame) -> dict[str, Any]:
    """Return a game in the form that ``parse_chain_game`` takes."""
    options = {**asdict(game.chain), "cache": game.chain.cache.value}
    return {"options": options, "path": list(game.path), "at": game.at, "ghost": game.ghost}


def encode_chain(game: ChainGame) -> str:
    """Return the game as text for an address."""
    c, ghost = game.chain, game.ghost.encode()
    head = (c.rows, c.inner, c.hidden, c.columns, c.capacity, _CACHES.index(c.cache), c.parts)
    return pack(CHAIN, (*head, len(ghost), *ghost, game.at), game.path)


def decode_chain(text: str) -> ChainGame:
    """Return the game of a text. Raises StudioError."""
    return unpack(CHAIN, text, _read_chain_game)


def _read_chain_game(numbers: Iterator[int]) -> ChainGame:
    rows, inner, hidden, columns, capacity, cache, parts = [next(numbers) for _ in range(7)]
    chain = Chain(rows, inner, hidden, columns, capacity, _CACHES[cache], parts)
    ghost, at = read_ghost(numbers), next(numbers)
    path = tuple(read_steps(numbers))
    check_path(chain, path)
    if at > len(path):
        raise ValueError
    return ChainGame(chain, path, at, ghost)


def _find_named_path(chain: Chain, name: str) -> tuple[int, ...]:
    orders = list_chain_orders(chain)
    if name not in orders:
        raise StudioError(f"no order is called {name!r} here; use one of {', '.join(orders)}")
    return orders[name]()


def _format_position(position: ChainPosition) -> dict[str, Any]:
    return {
        "loads": sum(position.loads.values()),
        "loads_of": position.loads,
        "hits": position.hits,
        "load_bytes": position.load_bytes,
        "costs": position.costs,
        "held": position.cached,
        "last": position.last,
    }
