"""Commands of the command line in this process, for tests."""

import re
from functools import cache
from typing import Any
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner, Result

from interlace.cli import app

#: up has 2 x 2 tiles of 16 x 64 and down 2 x 1: small enough to check by hand.
SMALL = ["--device", "cpu", "--m", "32", "--hidden", "64", "--ffn", "128"]


@cache
def build_commands(of: object) -> Any:
    """Build click's commands once; typer's runner builds all of them for every command that it runs."""
    return get_command(of)


def run_command(*arguments: object, **options: Any) -> Result:
    """Run a command; return its output, exit code and exception."""
    with mock.patch("typer.testing._get_command", build_commands):
        return CliRunner().invoke(app, [str(a) for a in arguments], **options)


def invoke(*arguments: object) -> Result:
    """Run a command; return its output and exit code, and raise every exception but an exit."""
    result = run_command(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def succeed(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def no_option(message: str, option: str) -> bool:
    """Return True if a message refuses an option that a command does not have, in the words of any click."""
    return re.search(f"No such option:? '?{option}\\b", message) is not None


def fail(code: int, *arguments: object) -> str:
    """The message of a command that must end with this exit code."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.replace("│", " ").split())
