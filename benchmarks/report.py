"""Draws docs/ffn.png and fills the README's table from benchmarks/results/ffn-h200.json.

    python benchmarks/report.py

Needs the ``plot`` extra. Run it after ``interlace bench ffn --out benchmarks/results/ffn-h200.json`` on a GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "results" / "ffn-h200.json"
SERIES = {
    "cublas": ("cuBLAS, CUDA graph", "#9aa0a6", "o"),
    "torch.compile": ("torch.compile, max-autotune, CUDA graph", "#5f6368", "s"),
    "cuda_graph": ("our tile bodies, CUDA graph", "#f29900", "^"),
    "best": ("our tile bodies, best tile-synchronised", "#1a73e8", "D"),
}


def times(row: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of each series."""
    executors, libraries = row["executors"], row["libraries"]
    return {
        "cublas": libraries["cublas"]["median_us"],
        "torch.compile": libraries["torch.compile"]["median_us"],
        "cuda_graph": executors["cuda_graph"]["median_us"],
        "best": executors[row["best"]]["median_us"],
    }


def plot(record: dict[str, Any]) -> None:
    """Time over the floor of bandwidth and FLOPs, by number of tokens."""
    models = list(dict.fromkeys(row["model"] for row in record["rows"]))
    figure, axes = plt.subplots(1, len(models), figsize=(11, 4), sharey=True)
    for axis, model in zip(axes, models, strict=True):
        rows = [row for row in record["rows"] if row["model"] == model]
        for key, (label, colour, marker) in SERIES.items():
            axis.plot(
                [str(row["m"]) for row in rows],
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


def table(record: dict[str, Any]) -> str:
    """The README's table."""
    lines = [
        f"Microseconds on an {record['gpu']} ({record['date']}, torch {record['versions']['torch'].split('+')[0]}, "
        f"triton {record['versions']['triton']}); `interlace bench ffn` repeats it.",
        "",
        "| FFN | tokens | cuBLAS + graph | torch.compile + graph | our bodies, CUDA graph "
        "| best tile-synchronised | executor |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        t = times(row)
        cells = (f"{t[key]:.1f}" for key in SERIES)
        lines.append(f"| {row['model']} | {row['m']} | {' | '.join(cells)} | {row['best']} |")
    worst = min(row["ratio"] for row in record["rows"])
    lines += [
        "",
        f"Tile-synchronised against the CUDA graph of the same bodies, each with its best tiling: geometric mean "
        f"{record['geometric_mean']:.3f}, lowest {worst:.3f}. [What was tried and why](docs/performance.md).",
    ]
    return "\n".join(lines)


def main() -> None:
    """Draw the plot and rewrite the table."""
    record = json.loads(RECORD.read_text())
    plot(record)
    readme = ROOT / "README.md"
    text = readme.read_text()
    block = f"<!-- results -->\n{table(record)}\n<!-- /results -->"
    readme.write_text(re.sub(r"<!-- results -->.*?<!-- /results -->", lambda _: block, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
