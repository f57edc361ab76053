"""Atomic file writes, and the folder of the cache that processes share."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

#: Suffix of files that are being written; one that remains after a crash may be deleted.
UNFINISHED_SUFFIX = ".tmp"


def cache_dir() -> Path:
    """Return this user's cache folder: $INTERLACE_CACHE_DIR, $XDG_CACHE_HOME/interlace or else ~/.cache/interlace.

    Raises:
        OSError: neither the environment nor the system names a folder.
    """
    if chosen := os.environ.get("INTERLACE_CACHE_DIR"):
        return Path(chosen)
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return (xdg if xdg.is_absolute() else Path("~/.cache").expanduser()) / "interlace"
    except RuntimeError:
        raise OSError(errno.ENOENT, "this user has no home folder; set INTERLACE_CACHE_DIR") from None


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe, a device or a folder, whose reader may wait for ever; a missing file passes."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a temporary file next to ``path``, then rename it: readers see the old file or the new one, never a part.

    If ``path`` is a link, its target is written and the link remains. A file that is replaced keeps its
    permissions; a new one has those of the process (its umask).

    Raises:
        OSError: the file cannot be written or is read-only, or is a device, a pipe or a folder, which a rename would
            replace.
    """
    path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    replaced = path.stat().st_mode & 0o777 if path.exists() else None
    if replaced is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    data = content.encode() if isinstance(content, str) else content
    # A short unique name, so that a name of full length can be written and concurrent writers do not collide.
    beside = path.with_name(f".interlace-{secrets.token_hex(8)}{UNFINISHED_SUFFIX}")
    try:
        with open(beside, "xb") as file:
            if replaced is not None:
                os.chmod(beside, replaced)
            file.write(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
