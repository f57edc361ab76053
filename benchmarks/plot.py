"""Draws docs/speedup.svg from benchmarks/results/ffn-h200.json.

    python benchmarks/plot.py

Needs the ``plot`` extra. Run it after ``interlace bench ffn --out benchmarks/results/ffn-h200.json`` on a GPU.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from interlace.core.files import write_whole
from interlace.kernels.matmul import Activation
from interlace.workloads import FFN

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "results" / "ffn-h200.json"
PLOT = ROOT / "docs" / "speedup.svg"
NAMES = {Activation.RELU: "ReLU", Activation.SILU: "SiLU", Activation.GELU_TANH: "GELU"}
FASTER, SLOWER, FLOOR = "#1a73e8", "#f29900", "#202124"


def title(name: str) -> str:
    """``4096-14336-4096, gated SiLU``."""
    shape = FFN.of({}, True, name).shape
    return f"{shape.hidden}-{shape.ffn}-{shape.hidden}, {'gated ' if shape.gated else ''}{NAMES[shape.activation]}"


def speedup(row: dict[str, Any], us: float) -> float:
    """Of a time over the baseline's."""
    return float(row["libraries"][row["library"]]["median_us"]) / us


def plot(record: dict[str, Any], path: Path = PLOT) -> None:
    """Speedup over the fastest library as bars from 1, a group per FFN, with what the floor would allow above each."""
    figure, axis = plt.subplots(figsize=(11, 4))
    small: dict[str, Any] = {"ha": "center", "fontsize": 8}
    ticks: dict[int, int] = {}
    at = 0
    for name in FFN.record:
        rows = [row for row in record["rows"] if row["preset"] == name]
        for x, row in enumerate(rows, at):
            ours, floor = row["ratio"], speedup(row, row["floor_us"])
            axis.bar(x, ours - 1, 0.7, bottom=1, color=FASTER if ours >= 1 else SLOWER)
            axis.hlines(floor, x - 0.35, x + 0.35, color=FLOOR, linewidth=1.5)
            axis.annotate(f"{ours:.2f}", (x, min(ours, 1)), (0, -10), textcoords="offset points", **small)
            ticks[x] = row["size"]
        if rows:
            middle = at + (len(rows) - 1) / 2
            axis.text(middle, -0.1, title(name), transform=axis.get_xaxis_transform(), va="top", **small)
            at += len(rows) + 1
    axis.axhline(1, color=FLOOR, linewidth=0.8)
    axis.plot([], [], color=FLOOR, linewidth=1.5, label="memory or tensor-core limit")
    axis.set_xticks(list(ticks), list(map(str, ticks.values())), fontsize=8)
    axis.margins(y=0.1)
    axis.set_ylabel("speedup over the best of PyTorch")
    axis.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.12))
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(f"FFNs in bf16, by tokens; {record['gpu']}, {record['date']}", fontsize=9)
    figure.tight_layout()
    text = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "interlace"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_whole(path, text.getvalue())


def main() -> None:
    """Draw the plot."""
    plot(json.loads(RECORD.read_text()))


if __name__ == "__main__":
    main()
