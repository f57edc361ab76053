"""``interlace profile``: limits of a workload on this GPU, by its hardware counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

import typer

from interlace import workloads
from interlace.bench.profile import BOUND, Figures, Profile
from interlace.bench.profile import profile as count
from interlace.cli.console import BadInput, print_line, print_table, show_stages
from interlace.cli.machine import find_machine, list_versions
from interlace.cli.names import Device
from interlace.cli.options import JsonFile
from interlace.cli.outputs import save_json
from interlace.cli.table import build_columns, format_number
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.workloads.base import Workload, list_options

_PARTS = (0.5, 1, 2, 4)  # multiples of the value of a field that is no size


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = add_workload_group(app, "profile", "Memory bound or compute bound? Counted on this GPU with ncu.")

    @add_per_workload(commands, several=True)
    def profile(
        work: Selection,
        sweep: Annotated[
            str | None,
            typer.Option(
                "--sweep",
                autocompletion=_complete,
                metavar="FIELD",
                help="What varies: the size (the default), or another number of the workload: half of it, and 1, 2 "
                "and 4 times.",
            ),
        ] = None,
        json: JsonFile = None,
    ) -> None:
        """Bytes from memory, hits of the L2, time, and what they mean, for each size of a workload, or another extent.

        One launch each, with empty caches, by the fastest executor that runs it as one launch, under the setting that
        `interlace tune` found, else the default. Needs a CUDA GPU and ncu (NVIDIA Nsight Compute), which must be
        allowed to read the GPU's counters.

        Example: interlace profile ffn

        Example: interlace profile ffn --sweep ffn --m 64

        Example: interlace profile ffn --preset gpt3-145b-tp8 --m 16 --m 512 --json profile.json
        """
        field = work.kind.size if sweep is None else sweep
        cases = _list_cases(work, field)
        machine = find_machine(Device.CUDA)
        with show_stages() as progress:
            found = count(cases, machine.spec, progress)
        if json is not None:
            head = {"gpu": machine.name, "date": date.today().isoformat(), "versions": list_versions(), "sweep": field}
            save_json(json, {**head, "rows": [row.to_data() for row in found]})
        _show(work.kind, field, machine.name, found)


def _list_numeric_fields(kind: type[Workload]) -> list[str]:
    """Return the fields that may vary, the size first."""
    names = [
        name for name, (_, field_type, option) in list_options(kind).items() if field_type is int and not option.names
    ]
    return sorted(names, key=lambda name: name != kind.size)


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    kind = next((kind for kind in workloads.WORKLOADS if kind.name == ctx.info_name), None)
    return [] if kind is None else [name for name in _list_numeric_fields(kind) if name.startswith(incomplete)]


def _list_cases(work: Selection, field: str) -> list[Workload]:
    """Return the workload for each value of a field."""
    kind = work.kind
    if field not in _list_numeric_fields(kind):
        raise BadInput(f"unknown sweep {field!r}; use one of {', '.join(_list_numeric_fields(kind))}")
    if field == kind.size:
        return work.build_all(gpu=True)
    found = []
    for preset in dict.fromkeys(work.presets or (None,)):
        one = replace(work, preset=preset)
        base = getattr(one.build_workload(gpu=True), field)
        for size in dict.fromkeys(work.sizes or (getattr(one.build_workload(gpu=True), kind.size),)):
            values = dict.fromkeys(max(1, int(part * base)) for part in _PARTS)
            found += [one.build_workload(True, **{kind.size: size, field: value}) for value in values]
    return found


def _show(kind: type[Workload], field: str, machine: str, found: Sequence[Profile]) -> None:
    named = list(dict.fromkeys((kind.size, field)))

    def cells(heads: Sequence[Any], what: str, f: Figures) -> list[str]:
        shares = (f"{share:.0%}" for share in (f.l2_hit_rate, f.memory_share, f.compute_share))
        hits, memory, compute = shares
        read = format_number(f.dram_read_bytes / 1e6)
        return [*map(str, heads), what, read, hits, format_number(f.us), memory, compute, f.bottleneck.value]

    titles: dict[str, list[list[str]]] = {}
    for row in found:
        title = ", ".join([kind.name, *row.workload.describe_fields(*named)])
        rows = titles.setdefault(f"{title}, on {machine}, {row.executor} executor", [])
        rows += [
            cells([getattr(row.workload, name) for name in named], "counted", row.counted),
            cells([""] * len(named), "predicted", row.predicted),
        ]
    headings = (*named, "", "read, MB", "L2 hits", "us", "of memory's rate", "of the FLOP rate", "verdict")
    for title, lines in titles.items():
        print_table(build_columns(title, headings, lines))
    print_line(f"bound by what it uses at least {BOUND:.0%} of; the setting of each is in the JSON (--json)")
