"""Bytes between memory and the chip against the size of the cache: bounds, the best tiling, and what is predicted.

    python benchmarks/bounds.py benchmarks/results/bounds-predicted.json

Needs no GPU. Four problems of ``bounds_cases.py`` in bf16: a matmul, GPT-3's MLP on one of eight GPUs, attention of one
head, a pair of convolutions. For each size of the cache, loads and stores together: the safe bound, the red-blue pebble
bound (COSMA), the best tiling of one buffer (Orojenesis), and what the planner's model predicts for the best of some
orders, with the drift and the two sides of an H200. Bytes that an H200 read and wrote come from
traffic-bounds-h200.json (``dram_traffic.py --case bounds``), next to what is predicted for the same launch. A problem
without a count there has none; the matmul has one in traffic-h200.json too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bounds_cases import (
    ATTENTION,
    BOUNDS_CASES,
    CONVOLUTIONS,
    GEMM,
    MLP,
    NAMED_INTERLEAVINGS,
    NAMED_ORDERS,
    build_graphs,
    build_plan,
)
from script import RESULTS, format_command, parse_arguments

import interlace as il
from interlace.bench.record import write_cpu_record
from interlace.core.devices import DeviceSpec
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.base import format_tiling
from interlace.planner.bounds import (
    BoundedQuantity,
    Gemm,
    Label,
    TrafficBound,
    bound_attention,
    bound_chain,
    bound_convolutions,
    bound_pebbling,
)
from interlace.planner.conv_mappings import map_conv_pair
from interlace.planner.mappings import TrafficCurve, map_chain, map_gemm
from interlace.planner.predict import count_traffic, predict_dram_reads

MEASURES = ("core/devices", "planner", "policies", "sim")
SIZES = [int(size) for size in np.geomspace(1 << 20, 100 << 20, 21)]
ELEMENT_BYTES = 2
CONV, _ = CONVOLUTIONS["convolutions"]
COUNTED, COUNTED_MATMULS = RESULTS / "traffic-bounds-h200.json", RESULTS / "traffic-h200.json"


@dataclass(frozen=True)
class Problem:
    """One picture.

    Attributes:
        name, title: short and long name.
        curve: least accesses of a tiling, in elements by buffer size in elements.
        bounds: device -> bounds with its L2.
        pebbles: matmuls that the pebble bound is for.
    """

    name: str
    title: str
    curve: TrafficCurve
    bounds: Callable[[DeviceSpec], Sequence[TrafficBound]]
    pebbles: tuple[Gemm, ...] = ()


def list_problems() -> list[Problem]:
    """Return the problems in the order of the picture."""
    scores = ATTENTION[0]
    return [
        Problem(
            "gemm",
            "matmul, 8192 cubed",
            map_gemm(GEMM),
            lambda device: bound_chain((GEMM,), ELEMENT_BYTES, device),
            (GEMM,),
        ),
        Problem(
            "mlp",
            "GPT-3's MLP, 1792 tokens",
            map_chain(*MLP),
            lambda device: bound_chain(MLP, ELEMENT_BYTES, device),
            MLP,
        ),
        Problem(
            "attention",
            "attention, 4096 tokens of 512",
            map_chain(*ATTENTION),
            lambda device: bound_attention(scores.m, scores.n, scores.k, 1, ELEMENT_BYTES, device, key_heads=1),
        ),
        Problem(
            "convolutions",
            f"two convolutions, {CONV.images} x {CONV.rows} x {CONV.columns} x {CONV.channels}",
            map_conv_pair(CONV, CONV),
            lambda device: bound_convolutions((CONV, CONV), ELEMENT_BYTES, device),
        ),
    ]


def predict_best(graphs: Sequence[il.Graph]) -> list[dict[str, Any]]:
    """Return for each size the least bytes that are predicted, and tiles, order and interleaving that move them."""
    best: list[dict[str, Any]] = [{} for _ in SIZES]
    for graph in graphs:
        mode = MegakernelExecutor.build_mode(graph, il.H200)
        for name in NAMED_ORDERS:
            for interleaving in NAMED_INTERLEAVINGS[: 1 if len(graph.ops) == 1 else None]:
                plan = build_plan(graph, name, interleaving)
                written = count_traffic(plan, il.H200, mode).traffic.written_bytes
                for at, read in enumerate(predict_dram_reads(plan, il.H200, SIZES, mode)):
                    if not best[at] or read + written < best[at]["bytes"]:
                        tile = format_tiling(graph)
                        best[at] = {
                            "bytes": read + written,
                            "tiles": tile,
                            "order": name,
                            "interleaving": interleaving,
                        }
    return best


def find_counted(name: str) -> dict[str, Any] | None:
    """Return the least loads and stores that were counted of a problem, with what is predicted for the same launch.

    Without a count among the cases of the picture, a matmul has that of ``traffic-h200.json``, and others have none.
    """
    counted: list[dict[str, Any]] = []
    if COUNTED.is_file():
        rows = json.loads(COUNTED.read_text())["rows"]
        counted = [
            {**row, "plan": case.plan()}
            for row in rows
            for case in BOUNDS_CASES
            if case.name == name and row.items() >= case.facts.items()
        ]
    if not counted and name == "gemm":
        rows = json.loads(COUNTED_MATMULS.read_text())["rows"]
        sizes = GEMM.m, GEMM.n, GEMM.k
        chosen = min((row for row in rows if (row["m"], row["n"], row["k"]) == sizes), key=_sum_counts)
        (graph,) = (g for g in build_graphs(name) if format_tiling(g) == f"matmul {chosen['tile']}")
        tiles = format_tiling(graph)
        plan = build_plan(graph, chosen["order"], NAMED_INTERLEAVINGS[0])
        counted = [{**chosen, "tiles": tiles, "interleaving": NAMED_INTERLEAVINGS[0], "plan": plan}]
    if not counted:
        return None
    least = min(counted, key=_sum_counts)
    mode = MegakernelExecutor.build_mode(least["plan"].graph, il.H200)
    traffic = count_traffic(least["plan"], il.H200, mode).traffic
    return {
        "bytes": _sum_counts(least),
        "read_bytes": least["dram_read_bytes"],
        "predicted_bytes": traffic.dram_read + traffic.written_bytes,
        "predicted_read_bytes": traffic.dram_read,
        **{fact: least[fact] for fact in ("tiles", "order", "interleaving")},
        "l2_bytes": il.H200.l2_bytes,
    }


def _sum_counts(row: dict[str, Any]) -> float:
    return float(row["dram_read_bytes"] + row["dram_write_bytes"])


def measure(problem: Problem) -> dict[str, Any]:
    """Return all lines of one picture, a value for each size."""
    safe, leading, pebbles, tiling = [], [], [], []
    for size in SIZES:
        device = replace(il.H200, l2_bytes=size)
        both = [bound for bound in problem.bounds(device) if bound.counts is BoundedQuantity.LOADS_AND_STORES]
        safe.append(next(bound.bytes for bound in both if bound.label is Label.SAFE))
        leading.append(next((bound.bytes for bound in both if bound.label is Label.LEADING), None))
        pebble = bound_pebbling(problem.pebbles, ELEMENT_BYTES, device) if problem.pebbles else None
        pebbles.append(pebble.bytes if pebble else None)
        least = problem.curve.evaluate(size / ELEMENT_BYTES)
        tiling.append(least * ELEMENT_BYTES if least else None)
    return {
        "name": problem.name,
        "title": problem.title,
        "safe_bytes": safe,
        "leading_bytes": [one or two for one, two in zip(pebbles, leading, strict=True)],
        "tiling_bytes": tiling,
        "tiling_full_from_bytes": int(problem.curve.buffer[-1]) * ELEMENT_BYTES,
        "predicted": predict_best(build_graphs(problem.name)),
        "counted": find_counted(problem.name),
    }


def main(path: str) -> None:
    """Compute, print and record."""
    rows = []
    for problem in list_problems():
        row = measure(problem)
        rows.append(row)
        for at in (0, len(SIZES) // 2, -1):
            shown = {key: row[f"{key}_bytes"][at] for key in ("safe", "leading", "tiling")}
            shown["predicted"] = row["predicted"][at]["bytes"]
            listed = ", ".join(f"{key} {value / 1e6:,.0f} MB" for key, value in shown.items() if value)
            print(f"{problem.title}, {SIZES[at] / (1 << 20):.0f} MiB: {listed}", flush=True)
    protocol = "loads and stores, by size of an L2 of two sides; nothing was measured but what is called counted"
    figures = {"sizes_bytes": SIZES, "rows": rows}
    write_cpu_record(Path(path), format_command(Path(path)), protocol, MEASURES, figures, ("numba", "numpy"))


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record"))
