"""Standard streams that accept every character and end a command in one line if they cannot be written.

a reader that stopped (``| head -1``)     exit code 141, as a shell counts SIGPIPE, and not a word
a full disk, a closed stream              one line on stderr, exit code 1
stderr that cannot be written             nothing: there is no place left to say it
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TextIO

from interlace.cli.console import FAILED, report

READER_STOPPED = 141


class _GuardedStream(io.RawIOBase):
    """A binary stream that calls ``lost`` when a write fails, and takes what comes after that for nothing."""

    def __init__(self, stream: TextIO, lost: Callable[[OSError], None]) -> None:
        super().__init__()
        self._stream = stream  # which closes its buffer when it goes
        self._binary = stream.buffer
        self._lost = lost

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._binary.fileno()

    def isatty(self) -> bool:
        return self._binary.isatty()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        try:
            self._binary.write(data)
            self._binary.flush()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # else the interpreter fails once more when it flushes at its end
            os.close(nowhere)
            self._lost(error)
        return len(data)


@contextmanager
def guard_standard_streams() -> Iterator[None]:
    """Standard output and stderr as above while a command runs."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # A closed stream. Its number, the lowest that is free, must not become that of a file of ours; and what is
            # only open for reading still fails where it is written.
            os.open(os.devnull, os.O_RDONLY)
    before = sys.stdout, sys.stderr
    sys.stdout = out = _guard_stream(sys.stdout, 1, _stop)
    sys.stderr = _guard_stream(sys.stderr, 2, lambda error: None)
    try:
        yield
    finally:
        try:
            if not out.closed:  # a file of the user's that is run may have closed it
                out.flush()
        finally:
            sys.stdout, sys.stderr = before


def _guard_stream(stream: TextIO | None, number: int, lost: Callable[[OSError], None]) -> TextIO:
    stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (stays open to the end)
    return io.TextIOWrapper(
        _GuardedStream(stream, lost),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors="replace",  # a letter that the terminal does not have is no reason to fail
        line_buffering=stream.isatty() or number == 2,
    )


def _stop(error: OSError) -> NoReturn:
    if isinstance(error, BrokenPipeError):
        raise SystemExit(READER_STOPPED)
    report(f"cannot write to standard output: {error.strerror}")
    raise SystemExit(FAILED)
