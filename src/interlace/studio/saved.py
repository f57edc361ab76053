"""Games as files: the order that ``--order explicit:FILE`` runs, and the whole game as its link."""

from __future__ import annotations

from typing import Any

from interlace.core.errors import OrderError, StudioError
from interlace.orders.saved import SavedOrder, read_file, written
from interlace.studio.game import Options
from interlace.studio.link import Game, decoded, encoded, path_of


def shown(game: Game) -> dict[str, Any]:
    """The text of a game's file, and whether all tiles are taken, so that it can run."""
    grid, taken = game.options.grid, game.path[: game.at]
    order = SavedOrder(grid.rows, grid.columns, tuple(v.row * grid.columns + v.column for v in taken))
    return {"file": written(order, game=encoded(game)), "complete": len(taken) == grid.tiles}


def opened(text: str) -> Game:
    """The game of a file; of one without, its order on tiles of the usual size.

    Raises:
        StudioError: no such file.
    """
    try:
        order, data = read_file(text)
    except OrderError as error:
        raise StudioError(str(error)) from None
    if isinstance(data.get("game"), str):
        return decoded(data["game"])
    usual = Options()
    options = Options(m=order.rows * usual.tile_m, n=order.columns * usual.tile_n)
    path = path_of(options.grid, [4 * tile for tile in order.tiles])
    return Game(options, path, len(path))
