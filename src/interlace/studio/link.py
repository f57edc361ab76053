"""A game as text for an address: options, path and position, compressed.

Numbers are written seven bits to a byte, low ones first, and a step of the path as the difference to the one before,
so that neighbours take a byte. The path 0, 1, 5 of a grid of 4 columns, row panels first:

    steps (4 * tile + way)   0   4   20         differences   0   4   16      as written   0   8   32
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from interlace.core.dtypes import DTYPES
from interlace.core.errors import StudioError
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.studio.game import MAX_PAIRS, GameOptions, Path, Unit, check_path

T = TypeVar("T")

#: First byte of the data: the kind of game, in the format of this release.
ONE_PRODUCT, CHAIN = 1, 2
#: A step takes at most three bytes. About twenty numbers of at most six bytes precede the steps.
_MAX_BYTES = 3 * MAX_PAIRS + 256
_MAX_BITS = 70  # of a number; longer ones would take time that grows with the square of their length
_UNITS, _CACHES = tuple(Unit), tuple(EvictionPolicy)


@dataclass(frozen=True)
class Game:
    """State that the page shows.

    Attributes:
        options: options of the product and the cache.
        path: all steps, including those that were undone and may be redone.
        at: number of steps taken.
        ghost: name of the order to compare with; "" for none.
    """

    options: GameOptions
    path: Path = ()
    at: int = 0
    ghost: str = ""


def encode_game(game: Game) -> str:
    """Return the game in letters, digits, ``-`` and ``_``."""
    o = game.options
    ghost = game.ghost.encode()
    head = [o.m, o.n, o.k, o.tile_m, o.tile_n, o.tile_k, o.capacity, _UNITS.index(o.unit), _CACHES.index(o.cache)]
    head += [o.workers, DTYPES.index(o.dtype), len(ghost), *ghost, game.at]
    return pack(ONE_PRODUCT, head, encode_path(o.grid, game.path))


def decode_game(text: str) -> Game:
    """Return the game of a text. Raises StudioError for no game, or one that the page does not accept."""
    return unpack(ONE_PRODUCT, text, _read_game)


def pack(kind: int, head: Iterable[int], steps: Sequence[int]) -> str:
    """Return non-negative numbers and a path of a game of this kind as text."""
    written = bytearray()
    for number in (*head, len(steps)):
        _write_number(written, number)
    before = 0
    for step in steps:
        _write_number(written, 2 * (step - before) if step >= before else 2 * (before - step) - 1)
        before = step
    return base64.urlsafe_b64encode(bytes([kind]) + zlib.compress(bytes(written), 9)).rstrip(b"=").decode()


def unpack(kind: int, text: str, read: Callable[[Iterator[int]], T]) -> T:
    """Decode a text of this kind with ``read``, which may call ``read_steps`` for the path at its end.

    Raises:
        StudioError: ``pack`` did not write the text, or ``read`` raised ValueError.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if len(text) > 2 * _MAX_BYTES or not raw or raw[0] != kind:
            raise ValueError
        unpacker = zlib.decompressobj()
        numbers = _read_numbers(unpacker.decompress(raw[1:], _MAX_BYTES))
        if not unpacker.eof:
            raise ValueError
        return read(numbers)
    except (ValueError, IndexError, StopIteration, zlib.error, binascii.Error, UnicodeError):
        raise StudioError("this link holds no game of this version; copy it whole, or begin a new one") from None


def read_ghost(numbers: Iterator[int]) -> str:
    """Return a name that is encoded as its length and its bytes."""
    letters = next(numbers)
    return bytes([next(numbers) for _ in range(letters)]).decode()


def read_steps(numbers: Iterator[int]) -> list[int]:
    """Return the path in the last numbers. Raises ValueError if it ends too early or too late."""
    length, steps, step = next(numbers), [], 0
    for difference in numbers:
        step += -(difference + 1) // 2 if difference % 2 else difference // 2
        steps.append(step)
    if len(steps) != length:
        raise ValueError
    return steps


def encode_path(grid: PanelGrid, path: Path) -> list[int]:
    """Return a path as numbers: 4 * tile, plus 1 for the column's panel first, plus 2 for K backwards."""
    return [4 * (v.row * grid.columns + v.column) + v.column_first + 2 * v.backwards for v in path]


def decode_path(grid: PanelGrid, steps: list[int]) -> Path:
    """Return the path of these numbers. Raises StudioError if they are no path of the grid."""
    path = tuple(Visit(*divmod(step // 4, grid.columns), bool(step % 2), bool(step // 2 % 2)) for step in steps)
    check_path(grid, path)
    return path


def _read_game(numbers: Iterator[int]) -> Game:
    m, n, k, tile_m, tile_n, tile_k, capacity, unit, cache, workers, dtype = [next(numbers) for _ in range(11)]
    options = GameOptions(
        *(m, n, k, tile_m, tile_n, tile_k, capacity), _UNITS[unit], _CACHES[cache], workers, DTYPES[dtype]
    )
    ghost, at = read_ghost(numbers), next(numbers)
    path = decode_path(options.grid, read_steps(numbers))
    if at > len(path):
        raise ValueError
    return Game(options, path, at, ghost)


def _write_number(to: bytearray, number: int) -> None:
    while number > 127:
        to.append(number & 127 | 128)
        number >>= 7
    to.append(number)


def _read_numbers(read: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in read:
        number |= (byte & 127) << shift
        shift += 7
        if shift > _MAX_BITS:
            raise ValueError
        if byte < 128:
            yield number
            number = shift = 0
