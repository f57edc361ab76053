"""Fills the blocks of README, docs/ and benchmarks/notes/ that are made from records; see ``BLOCKS``.

    python benchmarks/report.py

Run it after a record was measured anew; plot.py draws the figures. A block stands between two comments,
``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from script import RESULTS, ROOT, parse_arguments
from tables import cusync, ffn, launches, loops, modules, planner, related, training

from interlace.core.files import write_atomic

#: Decode steps on an H200; rows of each are of the same code.
STEP_RECORDS = "decode-h200.json", "decode-8b-h200.json"
#: Orders of the products after attention, as predicted and as measured.
SHAPES = "training-shapes-predicted.json", "training-shapes-h200.json"
#: Where each block stands, the records that it is made from, and what makes it of them.
BLOCKS: dict[str, tuple[str, tuple[str, ...], Callable[..., str]]] = {
    "readme": ("README.md", ("ffn-h200.json", "ffn-models-h200.json", "decode-h200.json"), ffn.readme),
    "summary": (
        "docs/performance.md",
        (
            "ffn-h200.json",
            "ffn-models-h200.json",
            "sync-h200.json",
            "dependencies-cpu.json",
            "traffic-predicted.json",
            "decode-h200.json",
        ),
        ffn.summary,
    ),
    "speedups": ("benchmarks/notes/ffn.md", ("ffn-h200.json",), ffn.speedups_table),
    "products": ("benchmarks/notes/ffn.md", ("one-matmul-h200.json", "normed-matmuls-h200.json"), ffn.products_table),
    "models": ("benchmarks/notes/triton.md", ("ffn-models-h200.json",), ffn.models_table),
    "sync": ("docs/performance.md", ("sync-h200.json",), launches.sync_table),
    "trace": ("docs/performance.md", ("trace-h200.json",), launches.trace_lines),
    "dependencies": ("benchmarks/notes/records.md", ("dependencies-cpu.json",), planner.dependencies_table),
    "speedups-summary": ("docs/performance.md", ("ffn-h200.json",), ffn.speedups_summary),
    "predicted": ("docs/planner.md", ("traffic-predicted.json",), planner.predicted_table),
    "chosen": ("docs/planner.md", ("planner-h200.json",), planner.chosen_table),
    "decode": ("docs/models.md", STEP_RECORDS, modules.decode_table),
    "rivals": ("benchmarks/notes/decode.md", STEP_RECORDS, modules.rivals_table),
    "decode-h100": (
        "benchmarks/notes/decode.md",
        ("decode-h100.json", "decode-batch16-h100.json", "decode-batch64-h100.json"),
        modules.decode_table,
    ),
    "hand-overs": (
        "benchmarks/notes/decode.md",
        ("decode-h200.json", "explored-decode-h200.json"),
        modules.hand_overs_table,
    ),
    "fences": ("benchmarks/notes/memory-order.md", ("fences-h200.json",), launches.fences_table),
    "tried": ("benchmarks/notes/decode-log.md", ("explored-decode-chain-h200.json",), launches.explored_table),
    "moe": ("benchmarks/notes/moe.md", ("moe-h200.json",), launches.uneven_table),
    "moe-range": ("docs/performance.md", ("moe-h200.json",), launches.uneven_range),
    "block-sparse": ("benchmarks/notes/moe.md", ("block-sparse-h200.json",), launches.uneven_table),
    "block-sparse-range": ("docs/performance.md", ("block-sparse-h200.json",), launches.uneven_range),
    "ragged": ("docs/performance.md", ("ragged-h200.json",), launches.uneven_table),
    "dispatches": ("docs/concepts.md", ("dispatch-h200.json",), launches.dispatches_table),
    "prefill": ("benchmarks/notes/prefill.md", ("prefill-h200.json",), modules.prefill_table),
    "choice": ("docs/pytorch.md", ("choose-h200.json",), modules.choice_line),
    "choice-h100": ("docs/pytorch.md", ("choose-h100.json",), modules.choice_line),
    "nn": ("docs/performance.md", ("nn-h200.json",), modules.nn_table),
    "nn-drawn": ("benchmarks/notes/ffn.md", ("nn-drawn-h200.json",), modules.drawn_table),
    "nn-h100": ("benchmarks/notes/ffn.md", ("nn-h100.json",), modules.nn_table),
    "row-ops": ("benchmarks/notes/loops.md", ("row-ops-h200.json",), loops.row_ops_table),
    "converted": ("docs/from-triton-to-megakernel.md", ("row-ops-h200.json",), loops.converted_table),
    "pipeline-best": ("docs/loops.md", ("pipeline-h200.json",), loops.pipeline_table),
    "cusync-published": ("benchmarks/notes/cusync.md", (), cusync.published_table),
    "cusync-hopper": (
        "benchmarks/notes/cusync.md",
        ("ffn-models-h200.json", "ffn-h200.json"),
        cusync.hopper_lines,
    ),
    "cusync-summary": ("benchmarks/notes/cusync.md", ("cusync-h200.json",), cusync.cusync_summary),
    "cusync": ("benchmarks/notes/cusync.md", ("cusync-h200.json",), cusync.cusync_table),
    "related-chain": ("docs/related.md", ("related-predicted.json",), related.chain_line),
    "related-widths": ("docs/related.md", ("related-predicted.json",), related.widths_line),
    "training-relu": ("benchmarks/notes/training-shapes.md", SHAPES, partial(training.orders_table, "relu")),
    "training-llama": ("benchmarks/notes/training-shapes.md", SHAPES, partial(training.orders_table, "llama3-8b")),
    "training-rows": ("docs/related.md", SHAPES, training.rows_first_line),
    "pipeline-depth": ("benchmarks/notes/loops.md", ("pipeline-h200.json",), loops.depth_table),
}


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


def main() -> None:
    """Rewrite the blocks."""
    for path, text in pages().items():
        write_atomic(path, text)


if __name__ == "__main__":
    parse_arguments(__doc__)
    main()
