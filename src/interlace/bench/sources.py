"""Source hashes of a record: one hash per room or module, reproducible from git at some commit.

A file's hash is that of its git blob. So the commit of a record can be found later, even if no repository is available
during the measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha1, sha256
from pathlib import Path

from interlace.core.errors import ArgumentError
from interlace.graph.graph import Graph
from interlace.kernels.base import get_kernel

PACKAGE = Path(__file__).resolve().parents[1]
#: Suffixes of modules, CUDA headers and data files, such as chip specs and measured tables.
SUFFIXES = (".py", ".cuh", ".toml", ".json")
_LAUNCHES = (  # sources that every launch depends on
    "csrc",
    "executors",
    "kernels/abi",
    "kernels/base.py",
    "kernels/bodies.py",
    "kernels/cuda",
    "kernels/gelu.py",
    "kernels/primitives",
    "kernels/rope.py",
    "kernels/folded_norm.py",
    "kernels/templates.py",
    "kernels/cuda_arguments.py",
    "kernels/cuda_body.py",
    "kernels/cuda_loads.py",
    "kernels/cuda_source.py",
    "kernels/megakernel_body.py",
    "kernels/tuning.py",
    "megakernel",
    "planner/build.py",
    "planner/retile.py",
    "planner/waits.py",
    "policies",
)


def list_launch_sources(graph: Graph) -> tuple[str, ...]:
    """Return the rooms and modules that decide the speed of a graph's launches: its kernels', and common ones.

    A kernel from outside the package may be a kernel of loops.
    """
    rooms = {*_LAUNCHES}
    for op in graph.ops:
        make = get_kernel(op).make
        package, _, module = (make.__module__ if make else "").partition(".kernels.")
        rooms.add(f"kernels/{module.partition('.')[0]}" if package == "interlace" and module else "loops")
    return tuple(sorted(rooms))


def hash_sources(rooms: Iterable[str]) -> dict[str, str]:
    """Return the hash of each room (``"kernels"``) or module (``"planner/build.py"``) of this package.

    Raises:
        ArgumentError: a room or module does not exist, so its hash would be meaningless.
    """
    return {room: combine_hashes(_hash_blobs(room)) for room in rooms}


def list_files(room: str) -> list[Path]:
    """Return the modules and data files of a room, the file itself for a module, or none for a missing path."""
    place = PACKAGE / room
    return [place] if place.is_file() else [file for file in place.rglob("*") if file.suffix in SUFFIXES]


def combine_hashes(blobs: Mapping[str, str]) -> str:
    """Return one hash of several files, given their blobs by path relative to the package."""
    return sha256("".join(f"{blob} {path}\n" for path, blob in sorted(blobs.items())).encode()).hexdigest()[:16]


def _hash_blobs(room: str) -> dict[str, str]:
    files = list_files(room)
    if not files:
        raise ArgumentError(f"the package has no room or module {room!r}; name one, such as 'kernels' or 'sim/l2.py'")
    return {file.relative_to(PACKAGE).as_posix(): _hash_blob(file.read_bytes()) for file in files}


def _hash_blob(data: bytes) -> str:
    return sha1(b"blob %d\0" % len(data) + data).hexdigest()
