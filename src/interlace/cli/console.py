"""Output of the commands: results, errors and progress."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from interlace.core.errors import InterlaceError

T = TypeVar("T")
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_LONGEST = 2000  # characters of a message that are shown
_WIDTH = 110  # columns of a table in a file or a pipe
_spinners: list[Callable[[str], None]] = []  # functions that change the texts of the spinners on the terminal


class BadInput(Exception):
    """Arguments or files are invalid."""


@contextmanager
def convert_to_bad_input() -> Iterator[None]:
    """Raise errors of the package as ``BadInput``, because the arguments describe nothing that can be built."""
    try:
        yield
    except InterlaceError as error:
        raise BadInput(str(error)) from error


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors into one line on stderr and an exit code: 2 for bad input, 130 for Ctrl-C, 1 for other failures."""
    try:
        yield
    except BadInput as error:
        raise fail(str(error), BAD_INPUT) from None
    except InterlaceError as error:
        raise fail(str(error), FAILED) from None
    except MemoryError as error:
        raise fail(f"out of memory: {error}; use a smaller problem or larger tiles", FAILED) from None
    except OSError as error:  # from the system, such as no space for a temporary file
        raise fail(f"{type(error).__name__}: {error}", FAILED) from None
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED) from None


def fail(message: str, code: int) -> typer.Exit:
    """Print an error and return the exception to raise."""
    report(message)
    return typer.Exit(code)


def report(message: str) -> None:
    """Print an error."""
    typer.echo(f"error: {escape_text(message)}", err=True)


def note(message: str) -> None:
    """Print a note on stderr; it is not a failure."""
    typer.echo(f"note: {escape_text(message)}", err=True)


@contextmanager
def note_warnings() -> Iterator[None]:
    """Print each warning as a note, in one line, instead of Python's two with a path and a line of source."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: note(str(message))
    try:
        yield
    finally:
        warnings.showwarning = before


def escape_text(text: str) -> str:
    """Return text as one line of bounded length, with control characters escaped, since files may hold anything."""
    words = " ".join(text[: 2 * _LONGEST].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    return line if max(len(line), len(text) // 2) <= _LONGEST else line[:_LONGEST] + " ..."


@contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """Show a spinner on stderr during slow work, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(f"{what} ...") as status, _register_spinner(status.update):
        yield


@contextmanager
def _register_spinner(update: Callable[[str], None]) -> Iterator[None]:
    _spinners.append(update)
    try:
        yield
    finally:
        _spinners.remove(update)


def update_spinners(text: str) -> None:
    """Change the text of the spinner or the bar on the terminal, if there is one."""
    for update in tuple(_spinners):
        update(text)


def show_progress(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    """Return the items, with a bar on stderr that shows how many of ``total`` are done, if stderr is a terminal."""
    console = Console(stderr=True)
    # Before rich 14.3, even a disabled bar ends in an empty line, so none is created.
    return track(items, what, total, console=console, transient=True) if console.is_terminal else items


@contextmanager
def show_stages() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that updates a bar on stderr, if it is a terminal: call it with stage, steps done and total."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task("", total=None)
        with _register_spinner(lambda text: bars.update(bar, description=text)):
            yield lambda what, done, total: bars.update(bar, description=what, completed=done, total=total)


def print_line(text: str) -> None:
    """Print a line on stdout."""
    typer.echo(escape_text(text))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout unchanged, with all spaces; pass foreign text through ``escape_text`` first."""
    for line in lines:
        typer.echo(line)


def print_table(table: Table) -> None:
    """Print a table on stdout."""
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
