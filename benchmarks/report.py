"""Draws docs/ffn.png and fills the blocks of README and docs/ that are made from records; see ``BLOCKS``.

    python benchmarks/report.py

Needs the ``plot`` extra. Run it after a record was measured anew; plot.py draws the figure above the table of
speedups. A block stands between two comments, ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from interlace.core.files import write_whole
from interlace.executors import EXECUTORS
from interlace.kernels.bodies import BodyKind
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch
from interlace.workloads import FFN

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SERIES = {
    "eager": ("cuBLAS, CUDA graph", "#9aa0a6", "o"),
    "compiled": ("torch.compile, max-autotune, CUDA graph", "#5f6368", "s"),
    "launches": ("our tile bodies, op by op", "#f29900", "^"),
    "best": ("our tile bodies, best tile-synchronised", "#1a73e8", "D"),
}

#: Sizes of the record's rows: a name, the least and the most tokens.
SIZES = (("up to 64", 0, 64), ("65 to 256", 65, 256), ("from 512", 257, 1 << 30))

#: What rows of uneven.py have beside what tells them apart, and how they call what torch.compile made.
UNEVEN = "workload", "bytes_us", "flops_us", "pytorch_relative_error", "ways", "left_out"
COMPILED = ", compiled"

#: The rows of docs/loops.md: the record's kernel, its title, its rival, and the target ratio.
PIPELINES = (
    ("copy, 1 dimension", "copy of 4 GiB, one dimension", "a vectorised kernel by hand, {}; cudaMemcpyAsync, {}", 0.95),
    ("copy, 2 dimensions", "copy of 4 GiB, two dimensions", "the same", 0.95),
    ("copy, 3 dimensions", "copy of 4 GiB, three dimensions", "the same", 0.95),
    ("pointwise", "pointwise chain, 4 GiB", "the same chain by hand, {}", 0.95),
    ("row sums", "row sums, 4 GiB", "a kernel that only reads, {}", 0.9),
    ("column sums", "column sums, 4 GiB", "the same", 0.9),
    ("layer norm of 4096", "layer normalisation, 4096 columns", "PyTorch", 1.0),
    ("layer norm of 16384", "layer normalisation, 16384 columns", "PyTorch", 1.0),
    ("matmul 4096 cubed", "matmul, 4096 cubed, bf16", "cuBLAS, {}", 0.8),
    ("matmul 8192 cubed", "matmul, 8192 cubed, bf16", "cuBLAS, {}", 0.8),
)
#: One shape of a kernel at every depth: the record's kernel and shape, and the title.
DEPTHS = (
    ("copy, 2 dimensions", "16x256 tiles, walks of 4", "copy, 16x256 tiles, four to a block"),
    ("pointwise", "4x256 tiles, walks of 8", "pointwise, 4x256 tiles, eight to a block"),
    ("row sums", "walks of 16", "row sums, 128 rows to a block"),
    ("column sums", "tiles of 16x128", "column sums, 16x128 tiles"),
    ("layer norm of 4096", "walks of 8", "layer normalisation, eight rows of 4096 to a block"),
    ("matmul 8192 cubed", "128x128 tiles", "matmul 8192 cubed, 128x128 tiles"),
    ("matmul 8192 cubed", "128x256 tiles", "matmul 8192 cubed, 128x256 tiles"),
)


def times(row: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of each series."""
    libraries, executors = row["libraries"], row["executors"]
    eager = {name: timed for name, timed in libraries.items() if name.startswith("eager")}
    compiled = {name: timed for name, timed in libraries.items() if name not in eager}
    launches, best = op_by_op(row)
    return {
        "eager": eager[fastest(eager)]["median_us"],
        "compiled": compiled[fastest(compiled)]["median_us"],
        "launches": executors[launches]["median_us"],
        "best": executors[best]["median_us"],
    }


def op_by_op(row: dict[str, Any]) -> tuple[str, str]:
    """The fastest executor of Triton bodies that launches op by op, and the fastest that synchronises tile by tile."""
    launched = {e.name: Ordering.LAUNCH in e.keeps for e in EXECUTORS if BodyKind.TRITON in e.kinds}
    both = ({n: t for n, t in row["executors"].items() if launched.get(n) is wanted} for wanted in (True, False))
    launches, best = map(fastest, both)
    return launches, best


def fastest(timed: dict[str, dict[str, float]]) -> str:
    """By the rounds to pick by, where the record has them apart."""
    return min(timed, key=lambda name: timed[name].get("picked_us", timed[name]["median_us"]))


def plot(record: dict[str, Any]) -> None:
    """Time over the floor of bandwidth and FLOPs, by number of tokens."""
    models = list(dict.fromkeys(row["preset"] for row in record["rows"]))
    figure, axes = plt.subplots(1, len(models), figsize=(11, 4), sharey=True)
    for axis, model in zip(axes, models, strict=True):
        rows = [row for row in record["rows"] if row["preset"] == model]
        for key, (label, colour, marker) in SERIES.items():
            axis.plot(
                [str(row["size"]) for row in rows],
                [times(row)[key] / row["floor_us"] for row in rows],
                label=label,
                color=colour,
                marker=marker,
                linewidth=1.5,
            )
        axis.set_title(f"{model} FFN, bf16")
        axis.set_xlabel("tokens")
        axis.grid(axis="y", alpha=0.3)
    worst = max(t / row["floor_us"] for row in record["rows"] for t in times(row).values())
    axes[0].set_ylim(1.0, worst * 1.03)
    axes[0].set_ylabel("time / floor (1 = memory or tensor-core limit)")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"{record['gpu']}, {record['date']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "ffn.png", dpi=150)


def models_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: Triton bodies op by op and tile by tile."""
    lines = [
        f"Microseconds on an {record['gpu']} ({record['date']}, {_versions(record)}); "
        f"`{record['command']}` repeats it.",
        "",
        "| FFN | tokens | cuBLAS + graph | torch.compile + graph | our bodies, op by op | by "
        "| best tile-synchronised | by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        t, (baseline, best) = times(row), op_by_op(row)
        *context, launches, ours = (f"{t[key]:.1f}" for key in SERIES)
        cells = f"{launches} | {baseline} | {ours} | {best}"
        lines.append(f"| {row['preset']} | {row['size']} | {' | '.join(context)} | {cells} |")
    ratios = tiled_ratios(record)
    lines += [
        "",
        f"Tile-synchronised against launches of the same bodies op by op, each with its best tiling: geometric mean "
        f"{geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}. What was tried and why is below.",
    ]
    return "\n".join(lines)


def tiled_ratios(record: dict[str, Any]) -> list[float]:
    """Of each row, launches op by op over tile-synchronised."""
    return [each["launches"] / each["best"] for each in map(times, record["rows"])]


def speedups_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: the fastest executor against the best of PyTorch."""
    lines = [
        "![Speedup over the best of PyTorch](speedup.svg)",
        "",
        f"Medians in microseconds on an {record['gpu']} ({record['date']}, {_versions(record)}); "
        f"`{record['command']}` repeats it.",
        "",
        "| FFN | tokens | best of PyTorch | which | Interlace | which | speedup | in a model: PyTorch | Interlace "
        "| speedup | memory or tensor-core limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        layer = row["layer"]
        library, ours = _medians(row)
        library_layer, ours_layer = _medians(layer)
        lines.append(
            f"| {row['preset']} | {row['size']} | {library} | {row['library']} | {ours} | {row['executor']} "
            f"| {row['ratio']:.2f} | {library_layer} | {ours_layer} | {layer['ratio']:.2f} | {row['floor_us']:.1f} |"
        )
    for where, ratios in _ratios(record["rows"]).items():
        lines += ["", f"Speedup {where}: geometric mean {geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}."]
    defined = sum(len(kept.sizes) for kept in FFN.record.values())
    if len(record["rows"]) < defined:
        lines += ["", f"These {len(record['rows'])} of the benchmark's {defined} rows were measured that day."]
    return "\n".join(lines)


def speedup_ends(record: dict[str, Any]) -> str:
    """The README's table: of each size the best row and the worst, as users get them."""
    lines = [
        "| FFN | tokens | best of PyTorch, us | Interlace, us | speedup | back to back |",
        "|---|---|---|---|---|---|",
    ]
    for _, least, most in SIZES:
        rows = sorted(_within(record, least, most), key=lambda row: row["layer"]["ratio"])
        for row in [rows[-1], rows[0]][: len(rows)]:
            library, ours = _medians(row["layer"])
            lines.append(
                f"| {row['preset']} | {row['size']} | {library} | {ours} "
                f"| {row['layer']['ratio']:.2f} | {row['ratio']:.2f} |"
            )
    means = {where: geometric_mean(ratios) for where, ratios in _ratios(record["rows"]).items()}
    lines += [
        "",
        f"Feed-forward networks between a norm and an add, as in a model, on an {record['gpu']} ({record['date']}, "
        f"{_versions(record)}), beside the best of eager PyTorch and torch.compile in a CUDA graph; back to back, each "
        f"follows itself. Of each size ({', '.join(name for name, *_ in SIZES)} tokens) these are the best row and the "
        f"worst, where there are two. Over all {len(record['rows'])} rows the speedup is {means['in a model']:.2f}, "
        f"back to back {means['back to back']:.2f}, in the geometric mean: [performance](docs/performance.md).",
    ]
    return "\n".join(lines)


def _medians(contest: dict[str, Any]) -> tuple[str, str]:
    """Of the fastest library and the fastest executor."""
    library, ours = contest["libraries"][contest["library"]], contest["executors"][contest["executor"]]
    return f"{library['median_us']:.1f}", f"{ours['median_us']:.1f}"


def summary(
    speedups: dict[str, Any],
    plain: dict[str, Any],
    sync: dict[str, Any],
    host: dict[str, Any],
    forecast: dict[str, Any],
) -> str:
    """What docs/performance.md says, in five lines."""
    means = {where: geometric_mean(ratios) for where, ratios in _ratios(speedups["rows"]).items()}
    ahead = {where: sum(ratio > 1 for ratio in ratios) for where, ratios in _ratios(speedups["rows"]).items()}
    ns, off = sync["nanoseconds"], forecast["errors"]["all"]
    largest = max(host["rows"], key=lambda row: row["counts"]["tiles"])
    lines = (
        f"An FFN as one launch, in a model, runs at {means['in a model']:.2f} of the speed of the best of PyTorch in "
        f"the geometric mean, ahead in {ahead['in a model']} of {len(speedups['rows'])} rows; back to back at "
        f"{means['back to back']:.2f}, ahead in {ahead['back to back']}.",
        "Plain Triton bodies synchronised [tile](glossary.md#tile) by tile run at "
        f"{geometric_mean(tiled_ratios(plain)):.2f} of the speed of launches op by op: worth it where a last "
        "[wave](glossary.md#wave) is badly filled, and nowhere else.",
        f"A post costs {ns['post']:.0f} ns, a [wait](glossary.md#wait) that is already satisfied "
        f"{ns['satisfied wait']:.0f}, a hand-over between two SMs {ns['one-way hand-over']:.0f}.",
        f"Predictions are off by {off['time']['median']:.1%} in time and {off['dram_read']['median']:.1%} in bytes "
        "from memory, in the median ([the planner](planner.md#how-well-it-predicts)).",
        f"A graph of {largest['counts']['tiles']:,} tiles is planned and proved in "
        f"{sum(largest['seconds'].values()):.1f} s on a CPU.",
    )
    return "\n".join(f"- {line}" for line in lines)


def speedups_summary(record: dict[str, Any]) -> str:
    """What the table of speedups comes to, by size."""
    lines = [
        "| tokens | rows | back to back: mean speedup | lowest | ahead | in a model: mean speedup | lowest | ahead |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, least, most in (*SIZES, ("all", 0, 1 << 30)):
        rows = _within(record, least, most)
        cells = []
        for ratios in _ratios(rows).values():
            cells += [f"{geometric_mean(ratios):.3f}", f"{min(ratios):.2f}", str(sum(r > 1 for r in ratios))]
        lines.append(f"| {name} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratios(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Speedups of rows over the best of PyTorch."""
    return {"back to back": [row["ratio"] for row in rows], "in a model": [row["layer"]["ratio"] for row in rows]}


def _within(record: dict[str, Any], least: int, most: int) -> list[dict[str, Any]]:
    """The rows with so many tokens."""
    return [row for row in record["rows"] if least <= row["size"] <= most]


def sync_table(record: dict[str, Any]) -> str:
    """What the parts of synchronisation cost."""
    words = {
        "post": "post: barrier and release add",
        "satisfied wait": "wait that is already satisfied: read its row, one poll, barrier",
        "satisfied wait of 112": "the same over 112 semaphores at once",
        "one-way hand-over": "hand-over between two SMs: from before a post to behind the wait that it ends",
        "ticket": "ticket: draw one and tell all threads",
    }
    rows = (f"| {text} | {record['nanoseconds'][name]:.0f} |" for name, text in words.items())
    return "\n".join(["| part | ns |", "|---|---|", *rows])


def trace_lines(record: dict[str, Any]) -> str:
    """What recording a trace costs."""
    ratios = ((row, row["with_us"] / row["without_us"]) for row in record["rows"])
    costs = (f"{ratio - 1:+.2%} ({row['model']}, {row['m']} tokens)" for row, ratio in ratios)
    return f"Recording a trace changes the time of a run by {' and '.join(costs)} (`trace-h200.json`)."


def nn_table(record: dict[str, Any]) -> str:
    """The table of docs/pytorch.md: modules against PyTorch by number of tokens."""
    lines = [
        f"Measured on an {record['gpu']} ({record['date']}, torch {record['versions']['torch'].split('+')[0]}), speed "
        "over the better of eager PyTorch and `torch.compile`, each in a CUDA graph; lowest of all: "
        f"{record['worst']:.3f}.",
        "",
        "| tokens | models | of which a launch runs | alone | in a layer | lowest of both |",
        "|---|---|---|---|---|---|",
    ]
    for tokens in dict.fromkeys(row["tokens"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["tokens"] == tokens]
        ratios = {where: [row[f"{where}_ratio"] for row in rows] for where in ("alone", "layer")}
        means = " | ".join(f"{geometric_mean(values):.3f}" for values in ratios.values())
        launches = sum(row["runs"] == "launch" for row in rows)
        lines.append(f"| {tokens} | {len(rows)} | {launches} | {means} | {min(map(min, ratios.values())):.3f} |")
    return "\n".join(lines)


def choice_line(record: dict[str, Any]) -> str:
    """How well it is known which FFNs a launch runs faster, of docs/pytorch.md."""
    rows = record["rows"]
    gained, possible = (100 * (record[name] - 1) for name in ("mean", "oracle"))
    margins = record["margins"]["predicted"].values()
    return (
        f"On the FFNs of {len({row['model'] for row in rows})} public models, each left out of the table in turn, this "
        f"choice gains {gained:.1f} % over PyTorch's ops where an oracle would gain {possible:.1f} % (geometric means "
        f"over {min(row['tokens'] for row in rows)} to {max(row['tokens'] for row in rows):,} tokens). Of "
        f"{record['launches']} launches that it takes {record['below'] or 'none'} "
        f"{'is' if record['below'] < 2 else 'are'} at below 0.97 of PyTorch's speed, with margins of "
        f"{100 * (min(margins) - 1):.0f} to {100 * (max(margins) - 1):.0f} %, by the rows of the launch."
    )


def decode_table(record: dict[str, Any]) -> str:
    """The first table of docs/decode.md: steps of whole models."""
    names = ("one_launch", "pdl", "cuda_graph", "compile", "eager")
    titles = "one launch | dependent launches | CUDA graph | torch.compile | eager"
    lines = [f"| model | batch | context | floor | {titles} |", "|---" * (len(names) + 4) + "|"]
    for row in record["rows"]:
        times = {**row["libraries"], **row["executors"]}
        cells = " | ".join(f"{times[name]['median_us']:.0f}" if name in times else "" for name in names)
        lines.append(f"| {row['model']} | {row['batch']} | {row['context']} | {row['floor_us']:.0f} | {cells} |")
    return "\n".join(lines)


def hand_overs_table(record: dict[str, Any], first: dict[str, Any]) -> str:
    """The second: when the ops of one layer of the one launch end, and when they did in the first version."""
    before = {layer["batch"]: layer["ops"] for layer in first["layers"]}
    columns: dict[str, dict[str, float]] = {}
    for row in record["rows"]:
        if row["batch"] in before:
            begin = before[row["batch"]][0]["first_start_us"]
            ends = {op["op"]: op["last_end_us"] - begin for op in before[row["batch"]]}
            columns[f"batch {row['batch']}, first version"] = ends
        columns[f"batch {row['batch']}"] = {op["op"]: op["last_end_us"] for op in row["layer"]}
    lines = [f"| op of a layer | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = " | ".join(f"{column[name]:.1f}" if name in column else "" for column in columns.values())
        lines.append(f"| `{name}` | {cells} |")
    return "\n".join(lines)


def fences_table(record: dict[str, Any]) -> str:
    """Nanoseconds of each way, a row for the bytes under way."""
    ways = list(record["rows"][0]["ns"])
    lines = ["| under way | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for row in record["rows"]:
        cells = [f"{row['ns'][way]['median']:.0f}" for way in ways]
        lines.append(f"| {row['bytes_under_way'] // 1024} KiB | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def explored_table(record: dict[str, Any]) -> str:
    """A table of what was tried by hand, each row within one run: what its rows name, then microseconds by variant."""
    heads = [name for name in record["rows"][0] if name != "us"]
    lines = [f"| {' | '.join(heads)} | us |", "|---" * (len(heads) + 1) + "|"]
    for row in record["rows"]:
        told = ", ".join(f"{name}: {us:.1f}" for name, us in row["us"].items())
        lines.append(f"| {' | '.join(str(row[name]) for name in heads)} | {told} |")
    return "\n".join(lines)


def dispatches_table(record: dict[str, Any]) -> str:
    """The table of docs/concepts.md: microseconds over the ideal of each dispatch of the one launch, by costs."""
    rows = [row for row in record["rows"] if row["executor"] == "one_launch"]
    kinds = list(dict.fromkeys(row["costs"] for row in rows))
    lines = [f"| dispatch | {' | '.join(kinds)} | ns an item |", "|---" * (len(kinds) + 2) + "|"]
    for dispatch in dict.fromkeys(row["dispatch"] for row in rows):
        mine = {row["costs"]: row for row in rows if row["dispatch"] == dispatch}
        over = " | ".join(f"{mine[kind]['us'] / mine[kind]['ideal_us']:.2f}" for kind in kinds)
        lines.append(f"| {dispatch} | {over} | {mine['uniform']['overhead_ns']:.0f} |")
    return "\n".join(lines)


def uneven_table(record: dict[str, Any]) -> str:
    """A table of docs/moe.md or docs/ragged.md: microseconds of each way, compiled or not, and what tickets gain.

    The least that there can be is of bytes or of products, and the last column is over the fastest way that is no
    launch of ours.
    """
    rows = record["rows"]
    heads = [name for name in rows[0] if name not in UNEVEN]
    own = [dispatch.value for dispatch in Dispatch] + ["CUDA graph of Triton bodies"]
    ways = list(dict.fromkeys(way.removesuffix(COMPILED) for row in rows for way in row["ways"]))
    lines = [f"| {' | '.join([*heads, 'floor', *ways, 'tickets gain'])} |", "|---" * (len(heads) + len(ways) + 2) + "|"]
    for row in rows:
        us: dict[str, float] = {}
        for way, told in row["ways"].items():
            name = way.removesuffix(COMPILED)
            us[name] = min(us.get(name, inf), told["median_us"])
        others = [value for way, value in us.items() if way not in own]
        cells = [str(row[name]) for name in heads] + [f"{max(row['bytes_us'], row['flops_us']):.1f}"]
        cells += [f"{us[way]:.1f}" if way in us else "-" for way in ways]
        cells += [f"{min(others) / us['ticket']:.2f}x" if others and "ticket" in us else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def dependencies_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: CPU seconds of large graphs, now and before."""
    limit = record["limit_s"]
    rows = []
    for row in record["rows"]:
        seconds, before = row["seconds"], row["before"]
        steps = " | ".join(f"{seconds[step]:.2g}" for step in ("dependencies", "build", "verify"))
        earlier = f"{sum(before.values()):.3g}" if before else f"more than {limit}"
        tiles, edges = row["counts"]["tiles"], row["counts"]["dependencies"]
        rows.append(f"| {row['graph']} | {tiles:,} | {edges:,} | {steps} | {sum(seconds.values()):.2g} | {earlier} |")
    head = "| graph | tiles | dependencies | find | build | verify | total, s | before, s |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


def chosen_table(record: dict[str, Any]) -> str:
    """The table of docs/planner.md: what the planner chose, beside the best and the default."""
    lines = [
        "| FFN | tokens | plans | chosen | us | best | default | row-major | predicted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        plans = {plan["plan"]: plan for plan in row["plans"]}
        chosen, best = plans[row["chosen"]], min(plan["us"] for plan in row["plans"])
        us = (chosen["us"], best, plans[row["default"]]["us"], plans[row["plain"]]["us"], chosen["predicted_us"])
        cells = " | ".join(f"{value:.1f}" for value in us)
        lines.append(f"| {row['row']} | {row['m']} | {len(plans)} | {row['chosen']} | {cells} |")
    worst = max(row["over_best"] for row in record["rows"])
    behind = sum(row["over_default"] > 1 for row in record["rows"])
    lines += [
        "",
        f"The choice takes at most {worst - 1:.1%} more than the best plan measured, the defaults "
        "by rule included; they are faster than the choice in "
        f"{behind} of {len(record['rows'])} cases. "
        f"Against row-major it is {record['mean_plain_over_chosen']:.2f} times as fast in the geometric mean.",
    ]
    return "\n".join(lines)


def predicted_table(record: dict[str, Any]) -> str:
    """The table of docs/planner.md: how far predictions are off."""
    names = {"all": "all", "matmuls": "single matmuls", "ffns": "FFNs"}
    lines = [
        "| cases | what is predicted | median error | 90th percentile | worst |",
        "|---|---|---|---|---|",
    ]
    for key, name in names.items():
        group = record["errors"][key]
        for what, words in (("dram_read", "bytes from memory"), ("time", "time")):
            cells = (f"{group[what][figure]:.1%}" for figure in ("median", "p90", "worst"))
            lines.append(f"| {name} ({group['cases']}) | {words} | {' | '.join(cells)} |")
    beyond = sum(abs(row["predicted"]["dram_read_error"]) > 0.12 for row in record["rows"])
    cases = record["errors"]["all"]["cases"]
    lines += ["", f"The bytes of {beyond} of {cases} cases are predicted more than 12 % too high or too low."]
    return "\n".join(lines)


def pipeline_table(record: dict[str, Any]) -> str:
    """The first table of docs/loops.md: the best setting of each kernel beside its best rival."""
    rows = {row["kernel"]: row for row in record["rows"]}
    lines = ["| kernel | best setting | beside | times as fast | target |", "|---|---|---|---|---|"]
    for kernel, title, beside, target in PIPELINES:
        row = rows[kernel]
        mine = {name: rate for name, rate in row["per_s"].items() if name.endswith(" stages")}
        others = {name: rate for name, rate in row["per_s"].items() if name not in mine}
        setting = max(mine, key=lambda name: mine[name])
        rates = (_rate(row, rate, unit=True) for rate in (max(others.values()), others.get("cudaMemcpyAsync", 0)))
        lines.append(f"| {title} | {setting} | {beside.format(*rates)} | {row['ratio']:.2f} | {target:.2f} |")
    return "\n".join(lines)


def depth_table(record: dict[str, Any]) -> str:
    """The second table of docs/loops.md: one shape of a kernel at every depth; a dash where it does not fit."""
    rows = {row["kernel"]: row for row in record["rows"]}
    stages = range(1, 9)
    lines = [f"| stages | {' | '.join(map(str, stages))} |", "|---" * (1 + len(stages)) + "|"]
    for kernel, shape, title in DEPTHS:
        row = rows[kernel]
        rates = (row["per_s"].get(f"{shape}, {depth} stages") for depth in stages)
        lines.append(f"| {title} | {' | '.join('-' if r is None else _rate(row, r) for r in rates)} |")
    return "\n".join(lines)


def _rate(row: dict[str, Any], rate: float, *, unit: bool = False) -> str:
    """TB/s with two decimals, TFLOP/s with none."""
    text = f"{rate:.2f}" if row["unit"] == "TB/s" else f"{rate:.0f}"
    return f"{text} {row['unit']}" if unit else text


def _versions(record: dict[str, Any]) -> str:
    return f"torch {record['versions']['torch'].split('+')[0]}, triton {record['versions']['triton']}"


def fill(text: str, name: str, block: str) -> str:
    """Text with the block of that name replaced."""
    return re.sub(
        rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
        lambda match: f"{match[1]}{block}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )


def pages() -> dict[Path, str]:
    """Every page with its blocks made anew; a block of a record that is not there yet stays as it is."""
    texts: dict[Path, str] = {}
    for name, (page, records, block) in BLOCKS.items():
        if not all((RESULTS / record).exists() for record in records):
            continue
        path = ROOT / page
        text = texts.get(path) or path.read_text()
        texts[path] = fill(text, name, block(*(json.loads((RESULTS / record).read_text()) for record in records)))
    return texts


#: Where each block stands, the records that it is made from, and what makes it of them.
BLOCKS: dict[str, tuple[str, tuple[str, ...], Callable[..., str]]] = {
    "speedup-ends": ("README.md", ("ffn-h200.json",), speedup_ends),
    "summary": (
        "docs/performance.md",
        ("ffn-h200.json", "ffn-models-h200.json", "sync-h200.json", "dependencies-cpu.json", "traffic-predicted.json"),
        summary,
    ),
    "speedups": ("docs/performance.md", ("ffn-h200.json",), speedups_table),
    "models": ("docs/performance.md", ("ffn-models-h200.json",), models_table),
    "sync": ("docs/performance.md", ("sync-h200.json",), sync_table),
    "trace": ("docs/performance.md", ("trace-h200.json",), trace_lines),
    "dependencies": ("docs/performance.md", ("dependencies-cpu.json",), dependencies_table),
    "speedups-summary": ("docs/performance.md", ("ffn-h200.json",), speedups_summary),
    "predicted": ("docs/planner.md", ("traffic-predicted.json",), predicted_table),
    "chosen": ("docs/planner.md", ("planner-h200.json",), chosen_table),
    "decode": ("docs/decode.md", ("decode-h200.json",), decode_table),
    "hand-overs": ("docs/decode.md", ("decode-h200.json", "explored-decode-h200.json"), hand_overs_table),
    "fences": ("docs/memory-order.md", ("fences-h200.json",), fences_table),
    "tried": ("docs/decode.md", ("explored-decode-chain-h200.json",), explored_table),
    "moe": ("docs/moe.md", ("moe-h200.json",), uneven_table),
    "ragged": ("docs/ragged.md", ("ragged-h200.json",), uneven_table),
    "dispatches": ("docs/concepts.md", ("dispatch-h200.json",), dispatches_table),
    "prefill": ("docs/prefill.md", ("explored-prefill-h200.json",), explored_table),
    "choice": ("docs/pytorch.md", ("choose-h200.json",), choice_line),
    "nn": ("docs/pytorch.md", ("nn-h200.json",), nn_table),
    "pipeline-best": ("docs/loops.md", ("pipeline-h200.json",), pipeline_table),
    "pipeline-depth": ("docs/loops.md", ("pipeline-h200.json",), depth_table),
}


def main() -> None:
    """Draw the plot and rewrite the blocks."""
    plot(json.loads((RESULTS / "ffn-models-h200.json").read_text()))
    for path, text in pages().items():
        write_whole(path, text)


if __name__ == "__main__":
    main()
