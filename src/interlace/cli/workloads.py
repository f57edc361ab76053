"""Commands that take a workload: one subcommand per workload, whose fields are its options.

    @add_per_workload(app, "plan")
    def plan(work: Selection, schedule: ScheduleOptions, out: OutFile) -> None: ...

makes ``interlace plan ffn --hidden 4096`` and ``interlace plan two-matmuls``, and for every other workload too. An
option that a workload does not have is rejected like any other unknown option.
"""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from interlace import workloads
from interlace.cli.console import convert_to_bad_input
from interlace.cli.names import NameTable
from interlace.cli.options import Spreads, add_command
from interlace.workloads.base import Option, Workload, list_options

#: Name of a plan file in the list of subcommands.
PLAN_FILE = "PLAN.json"


@dataclass(frozen=True)
class Selection:
    """Workload as given on the command line.

    Attributes:
        kind: class of the workload.
        given_fields: values of the fields that were given; if several sizes are accepted, they are in ``sizes``.
        preset: name of the preset, if one was given.
        presets, sizes: names of presets, and values of the workload's size field, if several are accepted; empty for
            the default.
    """

    kind: type[Workload]
    given_fields: Mapping[str, Any]
    preset: str | None = None
    presets: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def build_workload(self, gpu: bool, **fields: Any) -> Workload:
        """Return the workload, with defaults for a GPU or for a CPU.

        Raises:
            BadInput: there is no such workload.
        """
        with convert_to_bad_input():
            return self.kind.from_fields({**self.given_fields, **fields}, gpu, self.preset)

    def build_sizes(self, preset: str | None, gpu: bool, sizes: Sequence[int]) -> list[Workload]:
        """Return the workload of a preset in several sizes, each once.

        Raises:
            BadInput: there is no such workload.
        """
        one = replace(self, preset=preset)
        return [one.build_workload(gpu, **{self.kind.size: size}) for size in dict.fromkeys(sizes)]

    def build_all(self, gpu: bool) -> list[Workload]:
        """Return the workload of every preset in every size, each once."""
        sizes = self.sizes or self.kind.sizes
        presets = dict.fromkeys(self.presets or (None,))
        return [workload for preset in presets for workload in self.build_sizes(preset, gpu, sizes)]


class WorkloadGroup(TyperGroup):
    """Subcommand per workload, made on demand, and per plan file if the command runs plan files."""

    per_workload: ClassVar[Callable[..., None] | None] = None
    several: ClassVar[bool] = False
    per_plan: ClassVar[Callable[..., None] | None] = None
    _completion_names: tuple[str, ...] = ()  # plan files for completion in a shell

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self._list_kinds():
            kind = self._list_kinds()[cmd_name]
            self.commands[cmd_name] = _make_command(
                kind.name, self.per_workload, kind.summarise(), _build_options(kind, self.several)
            )
        if cmd_name not in self.commands and self.per_plan is not None and _is_plan(cmd_name):
            return _make_command(PLAN_FILE, self.per_plan, "A plan that `interlace plan` wrote.")
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        names = list(dict.fromkeys([*self._list_kinds(), *super().list_commands(ctx)]))
        if self.per_plan is None:
            return names
        return [*names, *(self._completion_names if ctx.resilient_parsing else (PLAN_FILE,))]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None and command.name == PLAN_FILE:
            return name, command, args  # the path is the command's argument too
        if command is not None or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if _is_plan(name):
            ctx.fail(f"{name!r} is a plan already; `interlace verify` proves it, `interlace run` runs it")
        other = ", or a plan file" if self.per_plan is not None else ""
        ctx.fail(f"unknown workload {name!r}; use one of {', '.join(self._list_kinds())}{other}")

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._completion_names = tuple(sorted(glob.glob(f"{glob.escape(incomplete)}*.json")))
        return super().shell_complete(ctx, incomplete)

    def _list_kinds(self) -> dict[str, type[Workload]]:
        return {kind.name: kind for kind in workloads.WORKLOADS} if self.per_workload is not None else {}


def _is_plan(text: str) -> bool:
    """Return True if a text is the path of a plan: it ends in .json, or the file exists."""
    return text.endswith(".json") or os.path.exists(text)


def add_workload_group(app: typer.Typer, name: str, help_text: str) -> typer.Typer:
    """Return a command that takes a workload, as a group of subcommands."""
    commands = typer.Typer(
        cls=type("WorkloadGroup", (WorkloadGroup,), {}),
        help=f"{help_text}\n\nEach workload has options of its own: `interlace {name} ffn --help` lists those of one.",
        no_args_is_help=True,
        subcommand_metavar="WORKLOAD [OPTIONS]",
        options_metavar="",
    )
    app.add_typer(commands, name=name)
    return commands


def add_per_workload(
    commands: typer.Typer, *, several: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a subcommand for every workload; the function's parameter of type ``Selection`` becomes the options of each.

    The first example of the function's docstring is also part of the group's help.

    Args:
        commands: the group.
        several: True if preset and size of the workload may be given more than once.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        kind: Any = commands.info.cls
        kind.per_workload, kind.several = staticmethod(function), several
        lines = (inspect.getdoc(function) or "").splitlines()
        examples = [line for line in lines if line.startswith("Example: ")]
        commands.info.help = "\n\n".join([str(commands.info.help), *examples[:1]])
        return function

    return add


def add_plan_file(commands: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the subcommand that takes a plan file in place of a workload."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        kind: Any = commands.info.cls
        kind.per_plan = staticmethod(function)
        return function

    return add


def _make_command(name: str, function: Any, summary: str, spreads: Spreads | None = None) -> Any:
    """Return one subcommand."""
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    add_command(alone, name, function, spreads or {}, summary)
    return typer.main.get_command(alone)


def _build_options(kind: type[Workload], several: bool) -> Spreads:
    """Return the options that make up a ``Selection`` of a workload."""
    parameters = _build_parameters(kind, several)

    def select(given: dict[str, Any]) -> Selection:
        values = {p.name: given.pop(p.name) for p in parameters}
        preset = values.pop("preset")
        presets = tuple(preset or ()) if several else ()
        sizes = tuple(values.pop(kind.size) or ()) if several else ()
        known = {n: v for n, v in values.items() if v is not None}
        return Selection(kind, known, None if several else preset, presets, sizes)

    return {Selection: (parameters, select)}


def _build_parameters(kind: type[Workload], several: bool) -> list[inspect.Parameter]:
    """Return the options of a workload; None for the default."""
    usual = (
        f"{kind.gpu_preset} on a GPU, else {kind.cpu_preset}" if kind.gpu_preset != kind.cpu_preset else kind.gpu_preset
    )
    preset = NameTable("preset", {name: name for name in kind.presets})
    told = "Values of the options below" + ("; may be repeated" if several else "")
    option = Option(f"{told} ({usual})", metavar="NAME", names=preset.plain)
    found = [_build_parameter("preset", object, option, several, "preset")]
    for name, (field, field_type, option) in list_options(kind).items():
        many = several and name == kind.size
        if many:
            listed = ", ".join(map(str, kind.sizes))
            option = replace(option, help=f"{option.help.rstrip('.')}; may be repeated. {listed} by default.")
        elif option.names is not None:
            default = next((n for n, value in option.names.items() if value == field.default), None)
            if default is not None and not any(name in values for values in kind.presets.values()):
                option = replace(option, help=f"{option.help}, {default} by default")
        elif isinstance(field.default, int) and not isinstance(field.default, bool):
            option = replace(option, help=f"{option.help.rstrip('.')}; {field.default} by default.")
        found.append(_build_parameter(name, field_type, option, many, name))
    return found


def _build_parameter(name: str, kind: type, option: Option, many: bool, what: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    flags = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    given: dict[str, Any] = {"help": option.help, "metavar": option.metavar, "rich_help_panel": option.group}
    base: Any = kind if kind in (int, float, bool, str, Path) else str
    if option.names is not None:
        choices: NameTable[Any] = NameTable(what, option.names)
        given |= {"parser": choices.parse, "autocompletion": choices.complete}
        given["help"] = f"{option.help}: {choices.listing}."
    elif kind is int:
        given["min"] = option.least
    taken = list[base] if many else base
    annotation: Any = Annotated[taken | None, typer.Option(flags, **given)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
