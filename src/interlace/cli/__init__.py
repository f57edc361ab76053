"""The command line: one module per group of commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from interlace import __version__
from interlace.cli import (
    bench,
    explain,
    generate,
    order,
    pipeline,
    plan,
    profile,
    run,
    serve,
    studio,
    trace,
    traffic,
    tune,
)
from interlace.cli.console import note_warnings, report_errors
from interlace.cli.streams import guard_standard_streams
from interlace.core.devices import DEFAULT_GPU

#: Order of the commands in ``interlace --help``: those for newcomers come first.
_PANELS = {
    "Run": ("run", "generate", "serve", "trace"),
    "Plan, and see why": ("explain", "plan", "verify"),
    "Study orders, caches and loops": ("studio", "traffic", "order", "pipeline"),
    "Measure on a GPU": ("bench", "tune", "profile"),
}


class _OrderedGroup(TyperGroup):
    """Group that lists the commands in the order of the panels; Ctrl-C while it parses ends in one line too."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        with report_errors():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        with report_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in _PANELS.values() for name in names]


app = typer.Typer(
    name="interlace",
    cls=_OrderedGroup,
    help=f"""Run a graph of dependent GPU kernels as if it were one kernel: synchronised tile by tile, proved before
launch.

To begin:

- `interlace run ffn` runs a feed-forward network on every executor that this machine has

- `interlace explain ffn --device cuda` predicts what an {DEFAULT_GPU.name} would do with it, and says why

- `interlace plan ffn --out plan.json` writes a plan, `interlace verify plan.json` proves it safe, and
`interlace studio plan.json` shows it

Every command explains itself: `interlace run --help` lists the workloads, `interlace run ffn --help` the options of
one.
""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"interlace {__version__}")
        raise typer.Exit()


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the app itself."""


for _room in (run, generate, serve, plan, explain, trace, traffic, bench, tune, profile, order, studio, pipeline):
    _room.register(app)
_panels_by_command = {name: panel for panel, names in _PANELS.items() for name in names}
for _command in app.registered_commands:
    _command.rich_help_panel = _panels_by_command[_command.name or ""]
for _group in app.registered_groups:
    _group.rich_help_panel = _panels_by_command[_group.name or ""]


def main() -> None:
    """Entry point of the ``interlace`` script and of ``python -m interlace``."""
    with guard_standard_streams(), note_warnings():
        app(prog_name="interlace")
