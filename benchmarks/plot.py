"""Draws docs/decode.svg of records of decode steps, docs/speedup.svg and docs/ffn.png of the records of FFNs, and
docs/bounds.svg of bounds on bytes from memory.

    python benchmarks/plot.py

Needs the ``plot`` extra. Run it after one of these records was measured anew.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report import STEP_RECORDS
from script import RESULTS, ROOT, parse_arguments
from tables.ffn import times

from interlace.core.files import write_atomic
from interlace.kernels.matmul import Activation
from interlace.workloads import FeedForward

DECODE, SPEEDUP, OVER_FLOOR = (ROOT / "docs" / name for name in ("decode.svg", "speedup.svg", "ffn.png"))
BOUNDS = ROOT / "docs" / "bounds.svg"
NAMES = {Activation.RELU: "ReLU", Activation.SILU: "SiLU", Activation.GELU_TANH: "GELU"}
FASTER, SLOWER, FLOOR = "#1a73e8", "#f29900", "#202124"
#: Label and colour of a decode step, and its variants, of which the fastest counts.
STEPS = {
    ("Interlace, megakernel", FASTER): ("one_launch",),
    ("best of torch.compile, CUDA graph", "#9aa0a6"): ("compile", "max-autotune"),
    ("eager PyTorch, CUDA graph", "#dadce0"): ("eager",),
}
#: Label, colour and marker of each entry of ``times``.
SERIES = {
    "eager": ("cuBLAS, CUDA graph", "#9aa0a6", "o"),
    "compiled": ("torch.compile, max-autotune, CUDA graph", "#5f6368", "s"),
    "launches": ("our tile bodies, op by op", "#f29900", "^"),
    "best": ("our tile bodies, best tile-synchronised", "#1a73e8", "D"),
}

#: Label, colour and style of each bound.
LINES = {
    "safe": ("safe bound", FLOOR, ":"),
    "leading": ("leading order: COSMA, Saha and Ye, Chen et al.", "#9aa0a6", "--"),
    "tiling": ("best tiling of one buffer (Orojenesis)", SLOWER, "-"),
}


def title(name: str) -> str:
    """``4096-14336-4096, gated SiLU``."""
    shape = FeedForward.from_fields({}, True, name).shape
    return f"{shape.hidden}-{shape.ffn}-{shape.hidden}, {'gated ' if shape.gated else ''}{NAMES[shape.activation]}"


def speedup(row: dict[str, Any], us: float) -> float:
    """Return the speedup of a time over the baseline's."""
    return float(row["libraries"][row["library"]]["median_us"]) / us


def plot_decode(records: Sequence[dict[str, Any]], path: Path = DECODE) -> None:
    """Time of a decode step as bars, a group for each model and batch, with what memory needs for its bytes in each.

    The groups of each record stand side by side, on a scale of their own.
    """
    widths = [len(record["rows"]) for record in records]
    figure, axes = plt.subplots(1, len(records), figsize=(11, 3.4), squeeze=False, width_ratios=widths)
    for axis, record in zip(axes[0], records, strict=True):
        labels = []
        for x, row in enumerate(record["rows"]):
            ways = row["libraries"] | row["executors"]
            for place, ((label, colour), names) in enumerate(STEPS.items()):
                us = min(timing["median_us"] for way, timing in ways.items() if way.partition(",")[0] in names)
                at = x + (place - 1) * 0.27
                axis.bar(at, us, 0.25, color=colour, label=None if x else label)
                axis.hlines(row["floor_us"], at - 0.125, at + 0.125, color=FLOOR, linewidth=1.5)
                axis.annotate(f"{us:.0f}", (at, us), (0, 2), textcoords="offset points", ha="center", fontsize=7)
            sequences = f"{row['batch']} sequence{'s' * (row['batch'] > 1)}"
            labels.append(f"{row['model']}\n{sequences}\n{row['context']} positions")
        axis.plot([], [], color=FLOOR, linewidth=1.5, label="least time of memory")
        axis.set_xticks(range(len(labels)), labels, fontsize=7)
        axis.margins(y=0.22)
        axis.spines[["top", "right"]].set_visible(False)
    first, record = axes[0][0], records[0]
    first.set_ylabel("microseconds a step")
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.94), ncols=4)
    figure.suptitle(f"Decode steps in bf16; {record['gpu']}, {record['date']}", fontsize=9)
    _save(figure, first, path)


def plot_speedup(record: dict[str, Any], path: Path = SPEEDUP) -> None:
    """Speedup in a model over the fastest library as bars from 1, a group per FFN, and above what the floor allows."""
    figure, axis = plt.subplots(figsize=(11, 4))
    small: dict[str, Any] = {"ha": "center", "fontsize": 8}
    ticks: dict[int, int] = {}
    at = 0
    for name in FeedForward.record:
        rows = [row for row in record["rows"] if row["preset"] == name]
        for x, row in enumerate(rows, at):
            ours, floor = row["layer"]["ratio"], speedup(row["layer"], row["floor_us"])
            axis.bar(x, ours - 1, 0.7, bottom=1, color=FASTER if ours >= 1 else SLOWER)
            axis.hlines(floor, x - 0.35, x + 0.35, color=FLOOR, linewidth=1.5)
            axis.annotate(f"{ours:.2f}", (x, min(ours, 1)), (0, -10), textcoords="offset points", **small)
            ticks[x] = row["size"]
        if rows:
            middle = at + (len(rows) - 1) / 2
            axis.text(middle, -0.1, title(name), transform=axis.get_xaxis_transform(), va="top", **small)
            at += len(rows) + 1
    axis.axhline(1, color=FLOOR, linewidth=0.8)
    axis.plot([], [], color=FLOOR, linewidth=1.5, label="memory or tensor-core limit of the FFN")
    axis.set_xticks(list(ticks), list(map(str, ticks.values())), fontsize=8)
    axis.margins(y=0.1)
    axis.set_ylabel("speedup over the best of PyTorch")
    axis.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.12))
    axis.set_title(f"FFNs between a norm and an add, in bf16, by tokens; {record['gpu']}, {record['date']}", fontsize=9)
    _save(figure, axis, path)


def _save(figure: Figure, axis: Axes, path: Path, top: float = 1.0) -> None:
    """Save as SVG, the same text for the same record; axes end at ``top``, below what stands there."""
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, top))
    text = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "interlace"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_atomic(path, text.getvalue())


def plot_over_floor(record: dict[str, Any], path: Path = OVER_FLOOR) -> None:
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
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_bounds(record: dict[str, Any], path: Path = BOUNDS) -> None:
    """Bytes from and to memory by size of the cache, a picture per problem, with the bytes that were counted."""
    mib = [size / (1 << 20) for size in record["sizes_bytes"]]
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), sharex=True)
    for axis, row in zip(axes.flat, record["rows"], strict=True):
        for key, (label, colour, style) in LINES.items():
            megabytes = [nan if value is None else value / 1e6 for value in row[f"{key}_bytes"]]
            axis.plot(mib, megabytes, color=colour, linestyle=style, linewidth=1.5, label=label)
        if row["predicted"]:
            best = [each["bytes"] / 1e6 for each in row["predicted"]]
            axis.plot(mib, best, color=FASTER, linewidth=1.5, label="predicted, best order of tiles")
        if row["counted"]:
            at = row["counted"]["l2_bytes"] / (1 << 20), row["counted"]["bytes"] / 1e6
            axis.plot(*at, "D", color=FASTER, label="counted on an H200")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(row["title"], fontsize=9)
        axis.set_xticks(ticks := [1, 2, 5, 10, 20, 50, 100], [str(tick) for tick in ticks])
        axis.minorticks_off()
        lowest, highest = axis.get_ylim()
        steps = (1, 2, 5) if highest > 5 * lowest else (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8)
        shown = [step * 10**power for power in range(6) for step in steps if lowest <= step * 10**power <= highest]
        axis.set_yticks(shown, [f"{step:,.0f}" for step in shown], fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[1]:
        axis.set_xlabel("size of the cache, MiB")
    for axis in axes[:, 0]:
        axis.set_ylabel("loads and stores, MB")
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.965), ncols=3)
    figure.suptitle("Bytes between memory and an L2, in bf16", fontsize=9, y=0.99)
    _save(figure, axes.flat[0], path, top=0.91)


def main() -> None:
    """Draw all."""
    plot_bounds(json.loads((RESULTS / "bounds-predicted.json").read_text()))
    plot_decode([json.loads((RESULTS / name).read_text()) for name in STEP_RECORDS])
    plot_speedup(json.loads((RESULTS / "ffn-h200.json").read_text()))
    plot_over_floor(json.loads((RESULTS / "ffn-models-h200.json").read_text()))


if __name__ == "__main__":
    parse_arguments(__doc__)
    main()
