"""Which sources a record measures: one hash for each room or module, equal to what git has at some commit.

A file's hash is that of its git blob, so that the commit of a record can be found where no repository is at hand when
it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha1, sha256
from pathlib import Path

from interlace.core.errors import ArgumentError

PACKAGE = Path(__file__).resolve().parents[1]
#: Modules, and data such as the numbers of a chip and what was measured on it.
SUFFIXES = (".py", ".toml", ".json")


def source_hashes(rooms: Iterable[str]) -> dict[str, str]:
    """The hash of each room (``"kernels"``) or module (``"planner/build.py"``) of this package.

    Raises:
        ArgumentError: there is no such room or module, so that its hash would say nothing.
    """
    return {room: hash_of(_blobs(room)) for room in rooms}


def files_of(room: str) -> list[Path]:
    """The modules and data files of a room; of a module, itself; of what is not there, none."""
    place = PACKAGE / room
    return [place] if place.is_file() else [file for file in place.rglob("*") if file.suffix in SUFFIXES]


def hash_of(blobs: Mapping[str, str]) -> str:
    """One hash of some files: their blobs by path below the package."""
    return sha256("".join(f"{blob} {path}\n" for path, blob in sorted(blobs.items())).encode()).hexdigest()[:16]


def _blobs(room: str) -> dict[str, str]:
    files = files_of(room)
    if not files:
        raise ArgumentError(f"the package has no room or module {room!r}; name one, such as 'kernels' or 'sim/l2.py'")
    return {file.relative_to(PACKAGE).as_posix(): _blob(file.read_bytes()) for file in files}


def _blob(data: bytes) -> str:
    return sha1(b"blob %d\0" % len(data) + data).hexdigest()
