"""Input files of commands; they may come from anywhere, so type and size are checked before reading."""

from __future__ import annotations

import stat
from pathlib import Path

from interlace.cli.console import BadInput


def read_text(path: Path, most_bytes: int, noun: str, maker: str) -> str:
    """Return the text of a file that should hold a ``noun``, such as a plan, which ``maker`` writes.

    Raises:
        BadInput: the file is missing, too large, no text or no file at all.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            what = "folder" if stat.S_ISDIR(info.st_mode) else "device or pipe"
            raise BadInput(f"{str(path)!r} is a {what}, no file; name {noun} that {maker} wrote")
        if info.st_size > most_bytes:
            raise BadInput(f"{str(path)!r} has {info.st_size} bytes, {noun} has at most {most_bytes}; use larger tiles")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{str(path)!r} is not text, so no {noun.split()[-1]}; {maker} writes one") from None
