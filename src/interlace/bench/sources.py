"""Which sources a record measures: one hash for each room or module, equal to what git has at some commit.

A file's hash is that of its git blob, so that the commit of a record can be found where no repository is at hand when
it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha1, sha256
from pathlib import Path

from interlace.core.errors import ArgumentError
from interlace.graph.graph import Graph
from interlace.kernels.base import kernel_of

PACKAGE = Path(__file__).resolve().parents[1]
#: Modules, and data such as the numbers of a chip and what was measured on it.
SUFFIXES = (".py", ".toml", ".json")
_LAUNCHES = (  # whatever is launched
    "executors",
    "kernels/abi",
    "kernels/base.py",
    "kernels/bodies.py",
    "kernels/cuda",
    "kernels/gelu.py",
    "kernels/primitives",
    "kernels/rope.py",
    "kernels/squares.py",
    "kernels/templates.py",
    "kernels/text.py",
    "kernels/text_source.py",
    "kernels/tuning.py",
    "launch",
    "planner/build.py",
    "planner/settings.py",
    "planner/waits.py",
    "policies",
)


def launched(graph: Graph) -> tuple[str, ...]:
    """The rooms and modules that decide how fast launches of a graph are: its kernels' own, and those of all launches.

    A kernel from elsewhere may be one of loops.
    """
    rooms = {*_LAUNCHES}
    for op in graph.ops:
        make = kernel_of(op).make
        package, _, module = (make.__module__ if make else "").partition(".kernels.")
        rooms.add(f"kernels/{module.partition('.')[0]}" if package == "interlace" and module else "loops")
    return tuple(sorted(rooms))


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
