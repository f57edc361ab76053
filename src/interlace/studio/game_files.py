"""Games as files: the order of one product for ``--order explicit:FILE``, and each whole game as its link.

{"schema": "interlace-chain", "version": 1, "game": "Anicy..."}      a game of two products
"""

from __future__ import annotations

import json
from typing import Any

from interlace.core.errors import OrderError, StudioError
from interlace.orders.order_file import SavedOrder, read_file, write_order
from interlace.studio.chain_wire import ChainGame, decode_chain, encode_chain
from interlace.studio.game import GameOptions
from interlace.studio.link import Game, decode_game, decode_path, encode_game

_CHAIN, _VERSION = "interlace-chain", 1


def save_game(game: Game) -> dict[str, Any]:
    """Return the text of a game's file, and True if all tiles are taken, so that the order can run."""
    grid, taken = game.options.grid, game.path[: game.at]
    order = SavedOrder(grid.rows, grid.columns, tuple(v.row * grid.columns + v.column for v in taken))
    return {"file": write_order(order, game=encode_game(game)), "complete": len(taken) == grid.tiles}


def open_game(text: str) -> Game:
    """Return the game of a file; for a file with an order only, that order on tiles of the default size.

    Raises:
        StudioError: no such file.
    """
    try:
        order, data = read_file(text)
    except OrderError as error:
        raise StudioError(str(error)) from None
    if isinstance(data.get("game"), str):
        return decode_game(data["game"])
    usual = GameOptions()
    options = GameOptions(m=order.rows * usual.tile_m, n=order.columns * usual.tile_n)
    path = decode_path(options.grid, [4 * tile for tile in order.tiles])
    return Game(options, path, len(path))


def save_chain(game: ChainGame) -> dict[str, Any]:
    """Return the text of the file of a game of two products, and True if all items are taken."""
    data = {"schema": _CHAIN, "version": _VERSION, "game": encode_chain(game)}
    return {"file": json.dumps(data) + "\n", "complete": game.at == game.chain.items}


def open_chain(text: str) -> ChainGame:
    """Return the game of two products of a file.

    Raises:
        StudioError: no such file, one of another version, or with a game that makes no sense.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise StudioError("no game: the text is no JSON; save one on the page of two products") from None
    if not isinstance(data, dict) or data.get("schema") != _CHAIN:
        raise StudioError(f"no game of two products: its schema is not {_CHAIN!r}; open an order on the other page")
    if data.get("version") != _VERSION:
        raise StudioError(f"a game of version {data.get('version')!r}; this release reads version {_VERSION}")
    if not isinstance(data.get("game"), str):
        raise StudioError("a file of a game without the game; save it once more")
    return decode_chain(data["game"])
