"""``interlace bench``: measurements, and the records that the documentation quotes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlace.bench import ffn as bench_ffn
from interlace.bench import sync as bench_sync
from interlace.bench.record import record
from interlace.cli import hopper
from interlace.cli.console import BadInput, progress, say, show, working
from interlace.cli.names import Names
from interlace.cli.options import command
from interlace.cli.outputs import Output, output, save
from interlace.cli.table import facts, number
from interlace.workloads import MODELS as SHAPES

MODELS = Names("model", SHAPES)
_MODELS = ("llama3-8b", "gpt3-145b-tp8")
_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048)
_FFN_PROTOCOL = (
    "CUDA-graph replays, variants interleaved, median of 15 rounds after picking on 15 others, bf16, weights rotated "
    "past the L2"
)
_SYNC_PROTOCOL = "1,000 rounds in one thread block of 4 warps, median of 11 repeats, %globaltimer"
Out = Annotated[
    Output | None,
    typer.Option("--out", metavar="FILE", parser=output, help="Write the record to this JSON file; - for stdout."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(help="Measure on a GPU, all variants in one run, interleaved.", no_args_is_help=True)
    app.add_typer(bench, name="bench")

    @command(bench, "ffn")
    def ffn(
        model: Annotated[
            list[str] | None,
            typer.Option(
                "--model", metavar="MODEL", autocompletion=MODELS.complete, help="A model's FFN; may be repeated."
            ),
        ] = None,
        m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Tokens; may be repeated.")] = None,
        out: Out = None,
        compiled: Annotated[
            bool,
            typer.Option("--compile/--no-compile", help="Include torch.compile, which takes long to tune."),
        ] = True,
    ) -> None:
        """Every executor against cuBLAS in a CUDA graph and torch.compile(mode="max-autotune").

        Each executor is reported with its best setting; the baseline is the CUDA graph of the same tile bodies
        with its best setting.

        Example: interlace bench ffn --m 16 --m 512 --no-compile --out record.json
        """
        models, tokens = model or list(_MODELS), m or list(_TOKENS)
        unknown = [name for name in models if name not in MODELS.plain]
        if unknown:
            raise BadInput(f"unknown models {unknown}; use {MODELS.listing}")
        cases = [(name, MODELS.plain[name], n) for name in models for n in tokens]
        with working("compiling kernels"):
            for _ in bench_ffn.compile_all([(shape, n) for _, shape, n in cases]):
                pass
        rows = [bench_ffn.measure(*case, compiled=compiled) for case in progress(cases, "measuring", len(cases))]
        mean = bench_ffn.geometric_mean([row.ratio for row in rows])
        if out is not None:
            asked = [f" --model {x}" for x in model or []] + [f" --m {x}" for x in m or []]
            figures = {"rows": [_data(row) for row in rows], "geometric_mean": mean}
            save(out, record(f"interlace bench ffn{''.join(asked)}", _FFN_PROTOCOL, bench_ffn.MEASURES, figures))
        for row in rows:
            show(facts(f"{row.model}, M = {row.m}", _lines(row)))
        say(
            f"best tile-synchronised executor against launches op by op: geometric mean {mean:.3f}, "
            f"lowest {min(row.ratio for row in rows):.3f}"
        )

    hopper.register(bench)

    @command(bench, "sync")
    def sync(out: Out = None) -> None:
        """What a post, a wait, a hand-over between SMs and a ticket cost, in nanoseconds on an idle GPU.

        Example: interlace bench sync
        """
        with working("measuring"):
            costs = bench_sync.costs()
        if out is not None:
            figures = {"nanoseconds": dict(costs)}
            save(out, record("interlace bench sync", _SYNC_PROTOCOL, bench_sync.MEASURES, figures))
        show(facts("cost of the parts", [(name, f"{number(ns)} ns") for name, ns in costs.items()]))


def _lines(row: bench_ffn.Row) -> list[tuple[str, str]]:
    lines = [(name, f"{number(t.median_us)} us") for name, t in row.libraries.items()]
    lines += [(name, f"{number(r.timing.median_us)} us   {r.setting}") for name, r in row.results.items()]
    lines.append(("floor", f"{number(row.floor_us)} us"))
    lines.append(("best tile-synchronised", f"{row.best}: {row.ratio:.3f} of {row.baseline}"))
    return lines


def _data(row: bench_ffn.Row) -> dict[str, Any]:
    def timing(t: Any) -> dict[str, float]:
        return {"median_us": t.median_us, "p20_us": t.p20_us, "p80_us": t.p80_us}

    return {
        "model": row.model,
        "m": row.m,
        "floor_us": row.floor_us,
        "libraries": {name: timing(t) for name, t in row.libraries.items()},
        "executors": {
            name: {**timing(r.timing), "setting": r.setting, "relative_error": r.relative_error}
            for name, r in row.results.items()
        },
        "best": row.best,
        "baseline": row.baseline,
        "ratio": row.ratio,
        "same_setting_ratio": row.same_setting,
    }
