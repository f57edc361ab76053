"""Options that several commands share, as frozen values, and functions that add commands to the app.

A command takes these values as parameters; ``register_command`` spreads their fields into options of the command
line, so that an option is declared once:

    @command(app, "plan")
    def plan(schedule: ScheduleOptions, out: OutFile) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from interlace.cli import names
from interlace.cli.console import report_errors
from interlace.cli.first_use import note_compiling
from interlace.cli.outputs import Output, parse_output, separate_outputs
from interlace.executors import Executor
from interlace.kernels.matmul.tile import TileShape
from interlace.policies.interleavings import Interleaving
from interlace.policies.orders import Order
from interlace.policies.splits import Split
from interlace.policies.sync import SyncPolicy

_PLAN = "Plan"


def make_option(choices: names.NameTable[Any], flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """Return an option whose value is one of ``choices``."""
    help_text = f"{text}: {choices.listing}."
    return typer.Option(
        flag,
        parser=choices.parse,
        autocompletion=choices.complete,
        metavar=metavar,
        help=help_text,
        rich_help_panel=panel,
    )


DeviceOption = Annotated[
    names.DeviceChoice | None,
    make_option(names.DEVICES, "--device", "DEVICE", "Where to run, or what to plan and predict for"),
]
TileOption = Annotated[
    TileShape | None,
    typer.Option(
        "--tile",
        parser=names.parse_tile,
        metavar="MxNxK",
        help="Output tile and chunk of the reduction, of every op.",
        rich_help_panel=_PLAN,
    ),
]


@dataclass(frozen=True)
class ScheduleOptions:
    """Options of the plan; None for the default."""

    tile: TileOption = None
    policy: Annotated[
        SyncPolicy | None,
        make_option(names.POLICIES, "--policy", "POLICY", "Which tiles share a semaphore", _PLAN),
    ] = None
    order: Annotated[
        Order | None, make_option(names.ORDERS, "--order", "ORDER", "In which order an op's tiles run", _PLAN)
    ] = None
    interleave: Annotated[
        Interleaving | None,
        make_option(names.INTERLEAVINGS, "--interleave", "HOW", "How the orders of several ops merge", _PLAN),
    ] = None
    dispatch: Annotated[
        names.DispatchChoice | None,
        make_option(
            names.DISPATCHES,
            "--dispatch",
            "DISPATCH",
            "Who takes which tile when (an executor that runs one dispatch only has that)",
            _PLAN,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            max=(1 << 31) - 1,
            help="Tiles that run at once; by default as many as suit the workload.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    split: Annotated[
        Split | None, make_option(names.SPLITS, "--split", "SPLIT", "How reductions are cut into items", _PLAN)
    ] = None
    chunk_waits: Annotated[
        bool,
        typer.Option(
            "--chunk-waits",
            help="Wait before the chunk of the reduction that needs the data, not at the start.",
            rich_help_panel=_PLAN,
        ),
    ] = False


Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs and of random interleavings.")]
ExecutorOption = Annotated[
    type[Executor] | None,
    make_option(names.EXECUTORS, "--executor", "NAME", "One way to run it"),
]
ExecutorOptions = Annotated[
    list[type[Executor]] | None,
    make_option(names.EXECUTORS, "--executor", "NAME", "Run only this one; may be repeated. One of"),
]
JsonFile = Annotated[
    Output | None,
    typer.Option(
        "--json", metavar="FILE", parser=parse_output, help="Write the results to this file too; - for stdout."
    ),
]
TraceFile = Annotated[
    Output | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        parser=parse_output,
        help="Write a trace of the last executor that can trace, for ui.perfetto.dev; - for stdout.",
    ),
]
OutFile = Annotated[
    Output, typer.Option("--out", metavar="FILE", parser=parse_output, help="The file to write; - for stdout.")
]


PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that `interlace plan` wrote.")]

#: Options that represent each type of parameter, and the function that removes their values and builds the parameter.
Spreads = Mapping[type, tuple[Sequence[inspect.Parameter], Callable[[dict[str, Any]], Any]]]


def register_command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command whose dataclass parameters are spread into options; errors become exit codes."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        add_command(app, name, function, {})
        return function

    return add


def add_command(
    app: typer.Typer, name: str, function: Callable[..., None], spreads: Spreads, summary: str | None = None
) -> None:
    """Add a command whose parameters of the types of ``spreads``, and of dataclasses, are spread into options.

    ``summary`` describes it in the list of commands; the default is the first line of the function's docstring.
    """
    made: dict[str, Callable[[dict[str, Any]], Any]] = {}
    flat: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint in spreads:
            options, made[parameter.name] = spreads[hint]
        elif isinstance(hint, type) and is_dataclass(hint):
            options, made[parameter.name] = _spread_fields(hint)
        else:
            options = (parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint),)
        flat += [option.replace(annotation=_convert_hint(option.annotation)) for option in options]

    def run(**given: Any) -> None:
        with report_errors(), separate_outputs(given.values()), note_compiling():
            for group, make in made.items():
                given[group] = make(given)
            function(**given)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in flat}
    app.command(name, short_help=summary)(run)


def _spread_fields(kind: type) -> tuple[list[inspect.Parameter], Callable[[dict[str, Any]], Any]]:
    """Return the fields of a dataclass as options, and the function that makes an instance of their values."""
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
    return options, lambda given: kind(**{name: given.pop(name) for name in names})


def _convert_hint(hint: Any) -> Any:
    """Return an annotation with a parser as text, because typer before 0.29 turns a parsed enum into None."""
    base, *metadata = get_args(hint) or (hint,)
    if not metadata or getattr(metadata[0], "parser", None) is None:
        return hint
    several = any(get_origin(part) is list for part in (base, *get_args(base)))
    return Annotated[list[str] | None if several else str | None, metadata[0]]
