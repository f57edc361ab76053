"""Write docs/cli.md from the commands: their help, their options, and an example of each with its output.

    python docs/commands.py

Run it after a command changed. Examples run without a GPU; those that need one are shown without output.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from interlace.cli import app
from interlace.core.files import write_atomic
from interlace.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
MOST_PARAGRAPHS = 2  # of the help of a command
COLUMNS = "110"  # width of the terminal that is shown


@dataclass(frozen=True)
class Example:
    """A command line that is run and shown.

    Attributes:
        lines: number of lines of the output that are shown, None for all.
    """

    command: str
    lines: int | None = None


#: Examples of each command, in the order of the page. They share a folder, so later ones read files of earlier ones.
EXAMPLES: dict[str, tuple[Example, ...]] = {
    "run": (Example("interlace run two-copies --device cpu --m 64 --n 64"),),
    "generate": (),
    "serve": (),
    "trace": (Example("interlace trace two-matmuls --device cpu --m 64 --hidden 64 --ffn 128 --out trace.json"),),
    "explain": (Example("interlace explain ffn --device cuda --preset minilm --m 16", lines=9),),
    "plan": (
        Example("interlace plan ffn --device cpu --m 256 --policy batched-row:2 --out plan.json", lines=11),
        Example("interlace plan ffn --device cpu --policy none --out unsafe.json"),
    ),
    "verify": (Example("interlace verify plan.json", lines=1),),
    "studio": (),
    "traffic": (Example("interlace traffic one-matmul --preset 4096-cubed --order grouped:8", lines=9),),
    "order": (Example("interlace order --grid 2x3 --capacity 3", lines=16),),
    "pipeline": (Example(f"interlace pipeline {ROOT / 'examples/06_row_sums_as_loops.py'} --print smem"),),
    "bench": (),
    "tune": (),
    "profile": (),
}
#: Workload whose help and options stand for those of all.
SHOWN = {"traffic": "one-matmul"}
_PLAN, _OWN = "Plan", None

HEAD = """# Command line

With this page you find the command for a task, its options and what it prints. It is made from the commands by \
`python docs/commands.py`; `interlace COMMAND --help` has the same, for each workload. Outputs are from a machine \
without a GPU, and times depend on the machine. `interlace --install-completion` installs completion for your shell.

Table: exit codes. A failure is one line on stderr.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an executor is wrong, a plan is not safe, a device is missing, memory or the disk is full |
| 2 | arguments or files that make no sense, a problem that is too large |
| 130, 141 | interrupted by Ctrl-C; the reader of standard output stopped |

Files are written whole or not at all; `-` is standard output, and messages then go to stderr. A plan holds \
4,194,304 [items](glossary.md#item) at most. Environment: `INTERLACE_CACHE_DIR` is the folder of measured settings, \
compiled kernels and [plans](proofs.md#cached-proofs), else `$XDG_CACHE_HOME/interlace` or `~/.cache/interlace`.
"""
NOTES = {
    "traffic": """Keys of the JSON file, sizes in bytes: `workload`, `tiles`, `workers`, `cache` (`name`, `sides`, \
`side_bytes`), `loads`, `bounds` (each `bytes`, `label`, `counts`, `source`) and `orders`, the least traffic first, \
each with `order`, `loaded_bytes`, `hit_bytes`, `hit_rate`, `dram_read_bytes`, `dram_read_interval_bytes`, \
`dram_read_bytes_by_tensor`, `dram_written_bytes`, `compulsory_bytes`, `over_safe`, `over_leading_order`.""",
    "studio": "[Studio](studio.md) describes the pages.",
    "explain": "[The planner](planner.md) describes what is predicted, and how well.",
    "generate": "[Models](models.md) lists the files that it reads.",
    "serve": "[Serving](serving.md) lists routes, fields and limits.",
}


def make_page() -> str:
    """Return the text of docs/cli.md; run its examples in a folder that is removed."""
    commands = _parts_of(get_command(app))
    shown = {name: _parts_of(c)[SHOWN.get(name, "ffn")] if _parts_of(c) else c for name, c in commands.items()}
    rows = [row for command in shown.values() for row in _rows(command, _OWN)]
    shared = {row for row in rows if rows.count(row) > 1}
    parts = [HEAD.strip(), "Commands: " + ", ".join(f"[`{name}`](#{name})" for name in commands) + "."]
    parts += _describe_workloads(commands["run"])
    parts += ["### Shared options", _table("options of several commands", "option", sorted(shared))]
    with TemporaryDirectory() as folder, chdir(folder):
        for name, command in shown.items():
            parts += _describe(name, command, shared)
            parts += _describe_others(name, _parts_of(commands[name]))
            parts.append(_show(name, command))
    return "\n\n".join(parts) + "\n"


def _parts_of(command: Any) -> dict[str, Any]:
    """Return the commands of a group by name, in its order; none of a command that is no group."""
    if not hasattr(command, "list_commands"):
        return {}
    context = command.make_context("interlace", [], resilient_parsing=True)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def _describe(name: str, command: Any, shared: Set[str]) -> Iterable[str]:
    yield f"## {name}"
    yield from [text for text in _paragraphs(command) if not text.startswith("Example: ")][:MOST_PARAGRAPHS]
    if name in NOTES:
        yield NOTES[name]
    rows = list(_rows(command, _OWN))
    own = [row for row in rows if row not in shared]
    if own:
        yield _table(f"options of `interlace {name}`", "option", own)
    others = [row.split("`")[1].split()[0] for row in rows if row in shared]
    planned = [row.split("`")[1].split()[0] for row in _rows(command, _PLAN)]
    lists = {"[Shared options](#shared-options)": others, "[Plan options](#plan-options)": planned}
    listed = (f"{title}: {', '.join(f'`{name}`' for name in names)}." for title, names in lists.items() if names)
    if text := " ".join(listed):
        yield text


def _describe_others(name: str, group: Mapping[str, Any]) -> Iterable[str]:
    """Return what a group has besides workloads and plan files."""
    for other in sorted(group.keys() - {each.name for each in WORKLOADS} - {"PLAN.json"}):
        yield f"`interlace {name} {other}`: {_paragraphs(group[other])[0]}"


def _show(name: str, command: Any) -> str:
    """Return the examples of a command with what they print, or those of its help where they need a GPU or a file."""
    if EXAMPLES[name]:
        return "\n".join(["```console", *(_run(example) for example in EXAMPLES[name]), "```"])
    lines = [text.removeprefix("Example: ") for text in _paragraphs(command) if text.startswith("Example: ")]
    return "\n".join(f"    {line}" for line in lines[:2])


def _describe_workloads(run: Any) -> Iterable[str]:
    yield "## Workloads"
    yield "The word after `run`, `trace`, `plan`, `explain`, `traffic`, `bench`, `tune` and `profile` is a workload:"
    rows = []
    for name, command in _parts_of(run).items():
        shape = [p for p in command.params if _panel(p) not in (_OWN, _PLAN) and p.name != "preset"]
        if shape:
            options = ", ".join(f"`{p.opts[0]}`" for p in shape)
            summary = _cell(command.short_help or "").replace("``", "`")
            rows.append(f"| `{name}` | {summary} | {options} |")
    yield _table("workloads and their options", "workload | what it is", rows)
    yield "`--preset NAME` sets several options at once; options that stand next to it override it."
    yield "### Plan options"
    yield _table("how to plan ([concepts](concepts.md))", "option", _rows(_parts_of(run)["ffn"], _PLAN))


def _table(caption: str, heads: str, rows: Iterable[str]) -> str:
    last = "options" if "|" in heads else "meaning"
    rule = "|---" * (heads.count("|") + 2) + "|"
    return "\n".join([f"Table: {caption}.", "", f"| {heads} | {last} |", rule, *rows])


def _rows(command: Any, panel: str | None) -> Iterable[str]:
    """Return the rows of the options in a panel."""
    options = (p for p in command.params if p.param_type_name == "option" and p.name != "help")
    return [f"| {_usage(p)} | {_cell(_help_of(p))} |" for p in options if _panel(p) == panel]


def _panel(parameter: Any) -> str | None:
    return getattr(parameter, "rich_help_panel", None)


def _usage(parameter: Any) -> str:
    names = " ".join(name for name in (parameter.opts[0], *parameter.secondary_opts))
    kind = "" if parameter.is_flag else parameter.metavar or "N"
    return f"`{names} {kind}`".replace(" `", "`")


def _help_of(parameter: Any) -> str:
    default = parameter.default
    plain = isinstance(default, int | float) and not isinstance(default, bool)
    return f"{parameter.help}{f' Default: {default:g}.' if plain else ''}"


def _paragraphs(command: Any) -> Sequence[str]:
    """Return the help of a command, a paragraph each, with install commands as code."""
    text = re.sub(r"pip install -e '\.\[.*?\]'", r"`\g<0>`", command.help or "")
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _run(example: Example) -> str:
    """Return the prompt with the command, and what it prints."""
    arguments = shlex.split(example.command)[1:]
    result = CliRunner(env={"COLUMNS": COLUMNS}).invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    output = result.output if result.exit_code else result.stdout  # notes on progress depend on what is cached
    lines = [line.rstrip() for line in output.rstrip().splitlines()]
    shown = lines[: example.lines]
    more = ["..."] if len(shown) < len(lines) else []
    code = [f"$ echo $?\n{result.exit_code}"] if result.exit_code else []
    return "\n".join([f"$ {example.command.replace(f'{ROOT}/', '')}", *shown, *more, *code])


if __name__ == "__main__":
    os.environ["COLUMNS"] = COLUMNS
    write_atomic(PAGE, make_page())
