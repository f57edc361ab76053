"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write beside ``path``, then rename: readers see the old file or the new one, never a part.

    Where ``path`` is a link, what it names is written and the link stays.

    Raises:
        OSError: the file cannot be written, or is a device, a pipe or a folder, which a rename would replace.
    """
    path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
