"""What takes long to make, kept in the user's cache between processes: compiled kernels, one file for each text,
compiler and architecture, and proved plans (``planner/kept``), one for each graph and choices.

    <cache folder>/compiled/<hash of the key>     a checksum of all that follows; facts as a line of JSON; the bytes

The key has all that these depend on: text, options, and the versions of what compiles it. A file is written whole,
then renamed, so readers never see half of one; one that is damaged nevertheless counts as absent and is written anew.
What is no file there, such as a pipe, counts as absent, too. A folder that cannot be written keeps nothing, and nothing
else is lost. ``core/store`` says whose folders and files are used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from interlace.core.store import CacheFolder, UnsafeCacheError, warn_unsafe

_STORE = CacheFolder("compiled", re.compile(r"[0-9a-f]{1,64}"))
_SCHEMA = 3  # of the facts: another number where others are kept
_CHECKSUM_BYTES = hashlib.sha256().digest_size
#: Files that are kept; those that were used longest ago go first.
MAX_ENTRIES = 2000


def compute_key(**facts: Any) -> str:
    """The hash of what a binary depends on."""
    return hashlib.sha256(json.dumps({"schema": _SCHEMA, **facts}, sort_keys=True).encode()).hexdigest()


def lookup(key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the binary that were kept under a key; None if there are none, or they are damaged."""
    try:
        content = _STORE.read(key)
    except OSError:
        return None
    if content is None:
        return None
    told, rest = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if told != _checksum(key, rest):
        return None
    line, _, binary = rest.partition(b"\n")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return (facts, binary) if isinstance(facts, dict) else None


def store(key: str, facts: Mapping[str, Any], binary: bytes) -> None:
    """Keep facts and a binary under a key, if the cache can be written."""
    rest = json.dumps(dict(facts)).encode() + b"\n" + binary
    try:
        _STORE.write(key, _checksum(key, rest) + rest)
        _STORE.prune(MAX_ENTRIES)
    except UnsafeCacheError as error:
        warn_unsafe(error)
    except OSError:
        return


def _checksum(key: str, rest: bytes) -> bytes:
    return hashlib.sha256(key.encode() + rest).digest()
