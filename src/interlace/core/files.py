"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write beside ``path``, then rename: readers see the old file or the new one, never a part.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
