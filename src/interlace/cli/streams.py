"""Standard streams that accept every character and end a command in one line if they cannot be written.

a reader that stopped (``| head -1``)     exit code 141, the shell's code for SIGPIPE, and no message
a full disk, a closed stream              one line on stderr, exit code 1
stderr that cannot be written             no message, because no stream is left for it
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
    """A binary stream that calls ``lost`` when a write fails, and discards all later writes."""

    def __init__(self, stream: TextIO, lost: Callable[[OSError], None]) -> None:
        super().__init__()
        self._stream = stream  # referenced because its finaliser closes the buffer
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
            os.dup2(nowhere, self.fileno())  # otherwise the interpreter's final flush fails again
            os.close(nowhere)
            self._lost(error)
        return len(data)


@contextmanager
def guard_standard_streams() -> Iterator[None]:
    """Guard standard output and stderr, as the module describes, while a command runs."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # A closed stream. Its number is the lowest free one and must not go to another file. Writes to the null
            # device fail because it is only open for reading.
            os.open(os.devnull, os.O_RDONLY)
    before = sys.stdout, sys.stderr
    sys.stdout = out = _guard_stream(sys.stdout, 1, _stop)
    sys.stderr = _guard_stream(sys.stderr, 2, lambda error: None)
    try:
        yield
    finally:
        try:
            if not out.closed:  # a user's file that was run may have closed it
                out.flush()
        finally:
            sys.stdout, sys.stderr = before


def _guard_stream(stream: TextIO | None, number: int, lost: Callable[[OSError], None]) -> TextIO:
    stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (stays open to the end)
    return io.TextIOWrapper(
        _GuardedStream(stream, lost),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors="replace",  # a character outside of the terminal's encoding is no failure
        line_buffering=stream.isatty() or number == 2,
    )


def _stop(error: OSError) -> NoReturn:
    if isinstance(error, BrokenPipeError):
        raise SystemExit(READER_STOPPED)
    report(f"cannot write to standard output: {error.strerror}")
    raise SystemExit(FAILED)
