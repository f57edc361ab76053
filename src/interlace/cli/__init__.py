"""The command line: one module per group of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from interlace import __version__
from interlace.cli import bench, explain, generate, order, pipeline, plan, profile, run, studio, trace, traffic, tune
from interlace.cli.streams import standard_streams

app = typer.Typer(
    name="interlace",
    help="Run a graph of dependent GPU kernels as if it were one kernel: "
    "synchronised tile by tile, proved before launch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlace {__version__}")
        raise typer.Exit()


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the app itself."""


for _room in (run, generate, plan, explain, trace, traffic, bench, tune, profile, order, studio, pipeline):
    _room.register(app)


def main() -> None:
    """Entry point of the ``interlace`` script and of ``python -m interlace``."""
    with standard_streams():
        app(prog_name="interlace")
