"""``interlace profile``: what limits a workload on this GPU, by its hardware counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from interlace.bench.profile import BOUND, Figures, Profile
from interlace.bench.profile import profile as count
from interlace.cli.console import say, show, stepping
from interlace.cli.machine import find, versions
from interlace.cli.names import SWEEPS, Device
from interlace.cli.options import FfnOptions, JsonFile, command
from interlace.cli.outputs import save_json
from interlace.cli.problem import ffn_facts, ffn_title, one_ffn
from interlace.cli.table import columns, number
from interlace.workloads.one_launch import OneLaunch

_TOKENS: Sequence[int] = (1, 16, 64, 256, 1024, 4096)
_FEW: Sequence[int] = (16,)  # where the width varies
_WIDTHS = (0.5, 1, 2, 4)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    profile = typer.Typer(help="Memory bound or compute bound? Counted on this GPU with ncu.", no_args_is_help=True)
    app.add_typer(profile, name="profile")

    @command(profile, "ffn")
    def ffn(
        which: FfnOptions,
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
        m: Annotated[
            list[int] | None,
            typer.Option(
                "--m",
                min=1,
                help=f"Tokens; may be repeated. {', '.join(map(str, _TOKENS))} by default, or 16 with --sweep ffn.",
            ),
        ] = None,
        json: JsonFile = None,
    ) -> None:
        """Bytes from memory, hits of the L2, time, and what they mean, for each number of tokens or width of an FFN.

        One launch each, with empty caches, by the Hopper executor where it takes the FFN, else by the persistent one,
        under the setting that `interlace tune` found, else the default. Needs a CUDA GPU and ncu (NVIDIA Nsight
        Compute), which must be allowed to read the GPU's counters.

        Example: interlace profile ffn --sweep m

        Example: interlace profile ffn --sweep ffn --m 64

        Example: interlace profile ffn --model gpt3-145b-tp8 --m 16 --m 512 --json profile.json
        """
        shape, dtype = one_ffn(which)
        machine = find(Device.CUDA)
        tokens, shapes = _TOKENS, [shape]
        if sweep == "ffn":
            tokens, shapes = _FEW, [replace(shape, ffn=max(1, int(part * shape.ffn))) for part in _WIDTHS]
        cases = [OneLaunch.here(n, s, dtype) for s in dict.fromkeys(shapes) for n in dict.fromkeys(m or tokens)]
        with stepping() as progress:
            found = count(cases, progress)
        if json is not None:
            head = {"gpu": machine.name, "versions": versions(), "workload": ffn_facts(shape, dtype), "sweep": sweep}
            save_json(json, {**head, "rows": [row.to_data() for row in found]})
        _show(f"{ffn_title(shape, dtype)}, on {machine.name}, {found[0].executor} executor", found)


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
