"""Outputs of the commands: files, written completely or not at all, or standard output for the name ``-``.

An option that writes has the type ``Output``, and an option that reads has the type ``Path``. These types alone
determine which options must not name the same file.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

import typer

from interlace.cli.console import BadInput, print_line
from interlace.core.files import write_atomic

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """Destination of a command.

    Attributes:
        path: the file.
        stream: standard output, if it is the destination; else None.
    """

    path: Path
    stream: TextIO | None = None

    def __str__(self) -> str:
        return str(self.path) if self.stream is None else "standard output"


def parse_output(text: str) -> Output:
    """Parse ``FILE``, or ``-`` for standard output. Raises typer.BadParameter if the file cannot be written."""
    return Output(Path(text), sys.stdout) if text == STDOUT else parse_output_file(text)


def parse_output_file(text: str) -> Output:
    """Parse ``FILE``. Raises typer.BadParameter before any work if it cannot be written."""
    obstacle = _find_obstacle(Path(text))
    if text == STDOUT:
        obstacle = "this cannot go to standard output; name a file"
    elif text.endswith(os.sep):
        obstacle = f"{text!r} is a folder; name a file"
    if obstacle:
        raise typer.BadParameter(obstacle)
    return Output(Path(text))


def save(out: Output, content: str | bytes) -> None:
    """Write a file completely or not at all, or write to standard output.

    Raises:
        BadInput: the file cannot be written.
    """
    if out.stream is None:
        try:
            write_atomic(out.path, content)
        except OSError as error:
            raise BadInput(f"cannot write {str(out.path)!r}: {error.strerror}") from None
    else:
        out.stream.write(content if isinstance(content, str) else content.decode())
        out.stream.flush()


def save_json(out: Output, data: Mapping[str, Any]) -> None:
    """Write data as JSON."""
    save(out, json.dumps(data, indent=2, allow_nan=False) + "\n")


def report_written(out: Output, what: str = "", then: str = "") -> None:
    """Print that a file was written; print nothing for standard output.

    Args:
        what: description of the file, such as "a trace of serial to ".
        then: advice on its use, such as "; open it in a browser".
    """
    if out.stream is None:
        print_line(f"wrote {what}{out}{then}")


@contextmanager
def separate_outputs(values: Iterable[object]) -> Iterator[None]:
    """Run a command with these values, after a check that no output is an input or another output.

    While an output goes to standard output, messages for people go to stderr.

    Raises:
        BadInput: two options name one file, possibly through a link, and one of them writes it.
    """
    given = list(values)
    seen: dict[object, str] = {_identify_file(value): repr(str(value)) for value in given if isinstance(value, Path)}
    if redirected := _identify_stdout():
        seen[redirected] = "what standard output goes to"
    outputs = [value for value in given if isinstance(value, Output)]
    for out in outputs:
        place, name = (STDOUT, str(out)) if out.stream is not None else (_identify_file(out.path), repr(str(out)))
        if place in seen:
            clash = f"{name} is named twice" if seen[place] == name else f"{seen[place]} and {name} are one file"
            raise BadInput(f"{clash}; give each output a file of its own, so that none is lost")
        seen[place] = name
    if any(out.stream is not None for out in outputs):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _identify_file(path: Path) -> object:
    """Return a key that is equal for all names of one file; for a file that does not exist, its folder and name."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
        return found.st_dev, found.st_ino
    except OSError:
        folder, name = os.path.split(real)
    try:
        found = os.stat(folder)
        return found.st_dev, found.st_ino, name
    except OSError:
        return real


def _identify_stdout() -> object:
    """Return the key of the file that standard output goes to; None if it goes elsewhere."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _find_obstacle(path: Path) -> str:
    """Return the reason why a path, or the target of a link, cannot be written; "" if it can."""
    try:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if target.is_dir():
            return f"{str(path)!r} is a folder; name a file"
        if os.path.lexists(target) and not target.is_file():
            return f"{str(path)!r} is no regular file; name one, or a new one, or {STDOUT} for standard output"
        if not target.parent.is_dir():
            return f"folder {str(target.parent)!r} does not exist; make it first"
        if target.exists() and not os.access(target, os.W_OK):
            return f"{str(path)!r} is read-only; use another name"
        with TemporaryFile(dir=target.parent):
            return ""
    except OSError as error:
        return f"cannot write {str(path)!r}: {error.strerror}; use another folder"
