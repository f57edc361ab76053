"""``interlace profile``: what limits a workload on this GPU, by its hardware counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from interlace.bench.case import FFNCase
from interlace.bench.profile import BOUND, Figures, Profile
from interlace.bench.profile import profile as count
from interlace.cli.console import BadInput, say, show, stepping
from interlace.cli.machine import find, versions
from interlace.cli.names import Device, Names
from interlace.cli.options import JsonFile
from interlace.cli.outputs import save_json
from interlace.cli.table import columns, number
from interlace.cli.workloads import Selection, group, per_workload
from interlace.workloads import FFN

_TOKENS = (1, 16, 64, 256, 1024, 4096)
_FEW = (16,)  # where the width varies
_WIDTHS = (0.5, 1, 2, 4)
SWEEPS = Names("sweep", {"m": "m", "ffn": "ffn"})


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = group(app, "profile", "Memory bound or compute bound? Counted on this GPU with ncu.")

    @per_workload(commands, several=True)
    def profile(
        work: Selection,
        sweep: Annotated[
            str,
            typer.Option(
                "--sweep",
                parser=SWEEPS.parse,
                autocompletion=SWEEPS.complete,
                metavar="WHAT",
                help="What varies: m, the number of tokens (the default), or ffn, the width between the matmuls: half "
                "of it, and 1, 2 and 4 times.",
            ),
        ] = "m",
        json: JsonFile = None,
    ) -> None:
        """Bytes from memory, hits of the L2, time, and what they mean, for each number of tokens or width of an FFN.

        One launch each, with empty caches, by the Hopper executor where it takes the FFN, else by the persistent one,
        under the setting that `interlace tune` found, else the default. Needs a CUDA GPU and ncu (NVIDIA Nsight
        Compute), which must be allowed to read the GPU's counters.

        Example: interlace profile ffn --sweep m

        Example: interlace profile ffn --sweep ffn --m 64

        Example: interlace profile ffn --preset gpt3-145b-tp8 --m 16 --m 512 --json profile.json
        """
        with_default = Selection(work.kind, work.given, work.preset, work.sizes or (_TOKENS if sweep == "m" else _FEW))
        base = [case for case in with_default.each(gpu=True) if isinstance(case, FFN)]
        if not base:
            raise BadInput(f"workload ffn is profiled, not yet {work.kind.name}")
        shape, dtype = base[0].shape, base[0].dtype
        machine = find(Device.CUDA)
        shapes = [shape]
        if sweep == "ffn":
            shapes = [replace(shape, ffn=max(1, int(part * shape.ffn))) for part in _WIDTHS]
        cases = [FFNCase.here(case.m, s, dtype) for s in dict.fromkeys(shapes) for case in base]
        with stepping() as progress:
            found = count(cases, progress)
        if json is not None:
            head = {"gpu": machine.name, "versions": versions(), "workload": base[0].facts(), "sweep": sweep}
            save_json(json, {**head, "rows": [row.to_data() for row in found]})
        what = ", ".join([FFN.name, *base[0].described(FFN.size)])
        _show(f"{what}, on {machine.name}, {found[0].executor} executor", found)


def _show(title: str, found: Sequence[Profile]) -> None:
    def cells(tokens: str, width: str, what: str, f: Figures) -> list[str]:
        shares = (f"{share:.0%}" for share in (f.l2_hit_rate, f.memory_share, f.compute_share))
        hits, memory, compute = shares
        read = number(f.dram_read_bytes / 1e6)
        return [tokens, width, what, read, hits, number(f.us), memory, compute, f.verdict.value]

    rows = []
    for row in found:
        rows += [cells(str(row.m), str(row.ffn), "counted", row.counted), cells("", "", "predicted", row.predicted)]
    headings = ("tokens", "ffn", "", "read, MB", "L2 hits", "us", "of memory's rate", "of the FLOP rate", "verdict")
    show(columns(title, headings, rows))
    say(f"bound by what it uses at least {BOUND:.0%} of; the setting of each is in the JSON (--json)")
