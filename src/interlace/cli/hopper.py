"""``interlace bench hopper-ffn``: the Hopper executor against the best of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from interlace.bench.hopper import MEASURES, ROWS, compile_all, means, measure
from interlace.bench.record import kept_rows, record
from interlace.cli.console import BadInput, progress, say, show
from interlace.cli.options import command
from interlace.cli.outputs import Output, output_file, save
from interlace.cli.table import columns

_PROTOCOL = (
    "CUDA graphs of many runs each, replayed with variants interleaved, median of 15 rounds after picking on "
    "15 others, bf16, weights rotated past twice the L2"
)


def register(bench: typer.Typer) -> None:
    """Add the command to ``interlace bench``."""

    @command(bench, "hopper-ffn")
    def hopper_ffn(
        row: Annotated[
            list[str] | None,
            typer.Option(
                "--row",
                metavar="NAME",
                autocompletion=_complete,
                help=f"One of {', '.join(ROWS)}; may be repeated.",
            ),
        ] = None,
        m: Annotated[
            list[int] | None, typer.Option("--m", min=1, help="Only these tokens of the rows; may be repeated.")
        ] = None,
        out: Annotated[
            Output | None,
            typer.Option(
                "--out", "--json", metavar="FILE", parser=output_file, help="Write the record to this JSON file."
            ),
        ] = None,
        update: Annotated[
            bool,
            typer.Option("--update", help="Keep what the record has and is not measured now (same GPU and versions)."),
        ] = False,
        compiled: Annotated[
            bool, typer.Option("--compile/--no-compile", help="Include torch.compile, which takes long to tune.")
        ] = True,
    ) -> None:
        """The Hopper executor against the best of eager PyTorch and torch.compile, each in a CUDA graph.

        The record is written after each measurement, so a run that is cut short keeps what it has.

        Example: interlace bench hopper-ffn --row relu --m 16 --m 512 --out record.json
        """
        cases = _cases(row or list(ROWS), m)
        jobs = [(n, ROWS[name].shape) for name, n in cases]
        for _ in progress(compile_all(jobs), "compiling kernels", len(jobs)):
            pass
        kept = kept_rows(out.path, MEASURES) if update and out is not None else []
        rows = [r for r in kept if (r["row"], r["m"]) not in cases]
        for name, n in progress(cases, "measuring", len(cases)):
            rows.append(measure(name, n, compiled=compiled).to_data())
            rows.sort(key=lambda r: (list(ROWS).index(r["row"]), r["m"]))
            if out is not None:
                figures = {"rows": rows, "means": _means(rows)}
                save(out, record("interlace bench hopper-ffn", _PROTOCOL, MEASURES, figures))
        _show(rows)


def _complete(incomplete: str) -> list[str]:
    return [name for name in ROWS if name.startswith(incomplete)]


def _cases(names: Sequence[str], m: Sequence[int] | None) -> list[tuple[str, int]]:
    """(row, tokens) of every measurement that the options ask for."""
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise BadInput(f"unknown rows {unknown}; use {', '.join(ROWS)}")
    cases = [(name, n) for name in dict.fromkeys(names) for n in ROWS[name].ms if m is None or n in m]
    if not cases:
        raise BadInput(f"no row of {', '.join(names)} has {', '.join(map(str, m or []))} tokens")
    return cases


def _means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ratios = {(row["row"], row["m"]): row["ratio"] for row in rows}
    return [
        {"row": name, "ms": list(bar.ms), "geometric_mean": mean, "bar": bar.ratio}
        for name, bar, mean in means(ratios)
    ]


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    def cells(row: Mapping[str, Any]) -> list[str]:
        library, ours, floor = row["libraries"][row["baseline"]], row["ours"]["median_us"], row["floor_us"]
        bar = "" if row["bar"] is None else f"{row['bar']:.2f}"
        times = (library["median_us"], ours, floor)
        ratios = (f"{row['ratio']:.3f}", bar, f"{ours / floor:.3f}")
        return [row["row"], str(row["m"]), row["baseline"], *(f"{t:.1f}" for t in times), *ratios]

    headings = ("row", "m", "baseline", "its us", "ours us", "floor us", "ratio", "asked", "ours / floor")
    show(columns("FFNs on the Hopper executor, medians", headings, map(cells, rows)))
    for mean in _means(rows):
        say(
            f"{mean['row']}, {mean['ms'][0]} to {mean['ms'][-1]} tokens: geometric mean {mean['geometric_mean']:.3f}, "
            f"asked {mean['bar']:.2f}"
        )
