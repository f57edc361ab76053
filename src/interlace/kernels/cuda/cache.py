"""Disk cache in the user's cache folder: compiled kernels, one file for each source, compiler and architecture, and
proved plans (``planner/proof_cache``), one file for each graph and schedule.

    <cache folder>/compiled/<hash of the key>     a checksum of all that follows; facts as a line of JSON; the bytes

The key has everything that an entry depends on: source with headers, options, and versions of the compilers. A file is
written whole and then renamed, so readers never see half of one. A damaged file, or a path that is not a file, such as
a pipe, counts as absent. In a folder that cannot be written nothing is cached, without an error. ``core/store`` says
whose folders and files are used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from interlace.core.store import CacheFolder, UnsafeCacheError, warn_unsafe

_STORE = CacheFolder("compiled", re.compile(r"[0-9a-f]{1,64}"))
_SCHEMA = 3  # version of the facts; increase it when they change
_CHECKSUM_BYTES = hashlib.sha256().digest_size
#: Most files; the least recently used ones are removed first.
MAX_ENTRIES = 2000


def compute_key(**facts: Any) -> str:
    """Return the hash of what an entry depends on."""
    return hashlib.sha256(json.dumps({"schema": _SCHEMA, **facts}, sort_keys=True).encode()).hexdigest()


def lookup(key: str) -> tuple[dict[str, Any], bytes] | None:
    """Return the facts and the bytes of an entry; None if there is none, or it is damaged."""
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
    """Store facts and bytes under a key, if the cache can be written."""
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
