"""Options that several commands share, as frozen values, and how commands are added to the app.

A command takes these values as parameters; ``command`` spreads their fields into options of the command
line, so that an option is declared once:

    @command(app, "plan")
    def plan(workload: WorkloadOptions, schedule: ScheduleOptions, out: OutFile) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from interlace.cli import names
from interlace.cli.console import reported
from interlace.cli.outputs import Output, kept_apart, output
from interlace.core.dtypes import DType
from interlace.kernels.matmul import Activation
from interlace.policies.interleavings import Interleaving
from interlace.policies.orders import Order
from interlace.policies.splits import Split
from interlace.policies.sync import SyncPolicy
from interlace.workloads import FFNShape

_SHAPE, _WEIGHTS, _PLAN = "Shape", "Weights from a checkpoint", "Plan"


def named(choices: names.Names[Any], flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    """An option whose value is one of ``choices``."""
    help_text = f"{text}: {choices.listing}."
    return typer.Option(
        flag,
        parser=choices.parse,
        autocompletion=choices.complete,
        metavar=metavar,
        help=help_text,
        rich_help_panel=panel,
    )


def _stored(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="NAME", help=text, rich_help_panel=_WEIGHTS)


Model = Annotated[
    FFNShape | None,
    named(names.MODELS, "--model", "MODEL", "Widths of a known model (llama3-8b on a GPU, else minilm)", _SHAPE),
]
Hidden = Annotated[
    int | None, typer.Option("--hidden", min=1, help="Width of the model (columns).", rich_help_panel=_SHAPE)
]
Ffn = Annotated[
    int | None, typer.Option("--ffn", min=1, help="Width between the two matmuls.", rich_help_panel=_SHAPE)
]
Gated = Annotated[
    bool | None,
    typer.Option(
        "--gated/--no-gated", help="down(silu(gate(x)) * up(x)), or without gate.", rich_help_panel=_SHAPE
    ),
]
ActivationOption = Annotated[
    Activation | None, named(names.ACTIVATIONS, "--activation", "NAME", "Between the matmuls", _SHAPE)
]
DTypeOption = Annotated[
    DType | None, named(names.DTYPES, "--dtype", "DTYPE", "Of all tensors, bf16 by default", _SHAPE)
]


@dataclass(frozen=True)
class FfnOptions:
    """Which FFN; None where the default is meant."""

    model: Model = None
    hidden: Hidden = None
    ffn: Ffn = None
    gated: Gated = None
    activation: ActivationOption = None
    dtype: DTypeOption = None


@dataclass(frozen=True)
class WorkloadOptions:
    """Which graph to build, or the plan that has it; None where the default is meant."""

    workload: Annotated[
        names.Workload | Path,
        typer.Argument(
            parser=names.workload,
            autocompletion=names.complete_workload,
            metavar="WORKLOAD",
            help=f"What to run: {names.WORKLOADS.listing}; for run and trace also a plan file.",
        ),
    ]
    model: Model = None
    m: Annotated[
        int | None, typer.Option("--m", min=1, help="Tokens (rows); 16 by default.", rich_help_panel=_SHAPE)
    ] = None
    hidden: Hidden = None
    ffn: Ffn = None
    gated: Gated = None
    activation: ActivationOption = None
    dtype: DTypeOption = None
    tile: Annotated[
        names.TileShape | None,
        typer.Option(
            "--tile",
            parser=names.tile,
            metavar="MxNxK",
            help="Output tile and chunk of the reduction, of every op.",
            rich_help_panel=_SHAPE,
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="A safetensors file; only the named tensors are read.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None
    up: Annotated[str | None, _stored("--up", "Up-projection, (ffn, hidden).")] = None
    down: Annotated[str | None, _stored("--down", "Down-projection, (hidden, ffn).")] = None
    gate: Annotated[str | None, _stored("--gate", "Gate projection, if the FFN is gated.")] = None
    device: Annotated[
        names.Device | None, named(names.DEVICES, "--device", "DEVICE", "Where to run, or what to plan for")
    ] = None


@dataclass(frozen=True)
class ScheduleOptions:
    """How to plan; None where the default is meant."""

    policy: Annotated[
        SyncPolicy | None,
        named(names.POLICIES, "--policy", "POLICY", "Which tiles share a semaphore", _PLAN),
    ] = None
    order: Annotated[
        Order | None, named(names.ORDERS, "--order", "ORDER", "In which order an op's tiles run", _PLAN)
    ] = None
    interleave: Annotated[
        Interleaving | None,
        named(names.INTERLEAVINGS, "--interleave", "HOW", "How the orders of several ops merge", _PLAN),
    ] = None
    dispatch: Annotated[
        names.DispatchChoice | None,
        named(
            names.DISPATCHES,
            "--dispatch",
            "DISPATCH",
            "Who takes which tile when (persistent-static and persistent-ticket fix it)",
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
        Split | None, named(names.SPLITS, "--split", "SPLIT", "How reductions are cut into items", _PLAN)
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
    names.ExecutorChoice | None,
    named(names.EXECUTORS, "--executor", "NAME", "One way to run it"),
]
ExecutorOptions = Annotated[
    list[names.ExecutorChoice] | None,
    named(names.EXECUTORS, "--executor", "NAME", "Run only this one; may be repeated. One of"),
]
JsonFile = Annotated[
    Output | None,
    typer.Option("--json", metavar="FILE", parser=output, help="Write the results to this file too; - for stdout."),
]
TraceFile = Annotated[
    Output | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        parser=output,
        help="Write a trace of the last executor that can trace, for ui.perfetto.dev; - for stdout.",
    ),
]
OutFile = Annotated[
    Output, typer.Option("--out", metavar="FILE", parser=output, help="The file to write; - for stdout.")
]


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command whose dataclass parameters are spread into options; errors become exit codes."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, type] = {}
        flat: list[inspect.Parameter] = []
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            hint = hints[parameter.name]
            if isinstance(hint, type) and is_dataclass(hint):
                groups[parameter.name] = hint
                field_hints = get_type_hints(hint, include_extras=True)
                flat += [
                    inspect.Parameter(
                        f.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=inspect.Parameter.empty if f.default is MISSING else f.default,
                        annotation=_as_typer_sees_it(field_hints[f.name]),
                    )
                    for f in fields(hint)
                ]
            else:
                flat.append(
                    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_as_typer_sees_it(hint))
                )

        def run(**given: Any) -> None:
            with reported(), kept_apart(given.values()):
                for group, kind in groups.items():
                    given[group] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
                function(**given)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in flat}
        app.command(name)(run)
        return function

    return add


def _as_typer_sees_it(hint: Any) -> Any:
    """An annotation with a parser, as text: typer before 0.29 turns a parsed enum into None."""
    base, *metadata = get_args(hint) or (hint,)
    if not metadata or getattr(metadata[0], "parser", None) is None:
        return hint
    several = any(get_origin(part) is list for part in (base, *get_args(base)))
    return Annotated[list[str] | None if several else str | None, metadata[0]]
