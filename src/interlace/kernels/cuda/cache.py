"""What takes long to make, kept in the user's cache between processes: compiled kernels, one file for each text,
compiler and architecture, and proved plans (``planner/kept``), one for each graph and choices.

    <cache folder>/compiled/<hash of the key>     a checksum of all that follows; facts as a line of JSON; the bytes

The key has all that these depend on: text, options, and the versions of what compiles it. A file is written whole,
then renamed, so readers never see half of one; one that is damaged nevertheless counts as absent and is written anew.
What is no file there, such as a pipe, counts as absent, too.
A folder that cannot be written keeps nothing, and nothing else is lost.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from interlace.core.files import cache_dir, check_regular, write_whole

_FOLDER = "compiled"
_SCHEMA = 3  # of the facts: another number where others are kept
_CHECKSUM_BYTES = hashlib.sha256().digest_size
#: Files that are kept; those that were used longest ago go first.
MOST = 2000


def key_of(**told: Any) -> str:
    """The hash of what a binary depends on."""
    return hashlib.sha256(json.dumps({"schema": _SCHEMA, **told}, sort_keys=True).encode()).hexdigest()


def lookup(key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the binary that were kept under a key; None if there are none, or they are damaged."""
    try:
        path = _path(key)
        check_regular(path)
        content = path.read_bytes()
        told, rest = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if told != _checksum(key, rest):
            return None
    except OSError:
        return None
    with suppress(OSError):  # a file of somebody else's is as good
        os.utime(path)
    facts, _, binary = rest.partition(b"\n")
    return json.loads(facts), binary


def keep(key: str, facts: Mapping[str, Any], binary: bytes) -> None:
    """Keep facts and a binary under a key, if the cache can be written."""
    rest = json.dumps(dict(facts)).encode() + b"\n" + binary
    try:
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _checksum(key, rest) + rest)
        _prune(path.parent)
    except OSError:
        return


def _prune(folder: Path) -> None:
    """Delete what was used longest ago; another process may be faster."""
    with os.scandir(folder) as entries:
        used = sorted(((entry.stat().st_mtime_ns, entry.path) for entry in entries), reverse=True)
    for _, path in used[MOST:]:
        Path(path).unlink(missing_ok=True)


def _checksum(key: str, rest: bytes) -> bytes:
    return hashlib.sha256(key.encode() + rest).digest()


def _path(key: str) -> Path:
    return cache_dir() / _FOLDER / key
