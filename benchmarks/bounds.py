"""Bytes between memory and the chip against the size of the cache: bounds, the best tiling, and what is predicted.

    python benchmarks/bounds.py benchmarks/results/bounds-predicted.json

Needs no GPU. Four problems in bf16: a matmul, GPT-3's MLP on one of eight GPUs, attention of one head, a pair of
convolutions. For each size of the cache, loads and stores together: the safe bound, the red-blue pebble bound (COSMA),
the best tiling of one buffer (Orojenesis), and what the planner's model predicts for the best of some orders, with the
drift and the two sides of an H200. Bytes that an H200 read and wrote come from traffic-h200.json, for the matmul; ncu
has not counted the other three (dram_traffic.py would need cases of these sizes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from script import RESULTS, format_command, parse_arguments

import interlace as il
from interlace.bench.record import write_cpu_record
from interlace.cli.names import ORDERS
from interlace.core.devices import DeviceSpec
from interlace.kernels.base import format_tiling
from interlace.planner.bounds import (
    BoundedQuantity,
    Convolution,
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
from interlace.policies.interleavings import Interleaving, RowPanels
from interlace.sim.modes import make_megakernel_mode

MEASURES = ("core/devices", "planner", "policies", "sim")
MODE = make_megakernel_mode(192 << 10)
SIZES = [int(size) for size in np.geomspace(1 << 20, 100 << 20, 21)]
NAMED = ("row", "column", "serpentine", "hilbert", *(f"grouped:{rows}" for rows in (2, 4, 8, 16, 32)))
INTERLEAVINGS: tuple[Interleaving, ...] = (il.OpAfterOp(), RowPanels(1), RowPanels(4))
ELEMENT_BYTES = 2
GEMM = Gemm(8192, 8192, 8192)
MLP = Gemm(1792, 6144, 12288), Gemm(1792, 12288, 6144)
ATTENTION = Gemm(4096, 4096, 512), Gemm(4096, 512, 4096)
CONV = Convolution(32, 7, 7, 512, 512)


@dataclass(frozen=True)
class Problem:
    """One picture.

    Attributes:
        name, title: short and long name.
        curve: least accesses of a tiling, in elements by buffer size in elements.
        bounds: device -> bounds with its L2.
        pebbles: matmuls that the pebble bound is for.
        graphs: tilings for the planner's model; none if it cannot run the problem.
        counted: (m, n, k) of the matmul in traffic-h200.json.
    """

    name: str
    title: str
    curve: TrafficCurve
    bounds: Callable[[DeviceSpec], Sequence[TrafficBound]]
    pebbles: tuple[Gemm, ...] = ()
    graphs: tuple[il.Graph, ...] = ()
    counted: tuple[int, int, int] | None = None


def list_problems() -> list[Problem]:
    """Return the problems in the order of the picture."""
    tiles = il.MatmulTile(128, 128, 64, num_warps=8), il.MatmulTile(128, 256, 64, num_warps=8)
    mlp = il.workloads.FeedForward.from_fields({"m": MLP[0].m}, True, "gpt3-145b-tp8").shape
    scores = ATTENTION[0]
    attention = [
        il.workloads.attention(scores.m, scores.n, scores.k, il.bf16, tile, rows=ceil(scores.m / 132)) for tile in tiles
    ]
    return [
        Problem(
            "gemm",
            "matmul, 8192 cubed",
            map_gemm(GEMM),
            lambda device: bound_chain((GEMM,), ELEMENT_BYTES, device),
            (GEMM,),
            tuple(il.workloads.one_matmul(GEMM.m, GEMM.n, GEMM.k, tile=tile) for tile in tiles),
            (GEMM.m, GEMM.n, GEMM.k),
        ),
        Problem(
            "mlp",
            "GPT-3's MLP, 1792 tokens",
            map_chain(*MLP),
            lambda device: bound_chain(MLP, ELEMENT_BYTES, device),
            MLP,
            tuple(il.workloads.ffn(MLP[0].m, mlp, il.bf16, tile, tile) for tile in tiles),
        ),
        Problem(
            "attention",
            "attention, 4096 tokens of 512",
            map_chain(*ATTENTION),
            lambda device: bound_attention(scores.m, scores.n, scores.k, 1, ELEMENT_BYTES, device, key_heads=1),
            (),
            tuple(attention),
        ),
        Problem(
            "convolutions",
            "two convolutions, 32 x 7 x 7 x 512",
            map_conv_pair(CONV, CONV),
            lambda device: bound_convolutions((CONV, CONV), ELEMENT_BYTES, device),
        ),
    ]


def predict_best(graphs: Sequence[il.Graph]) -> list[dict[str, Any]]:
    """Return for each size the least bytes that are predicted, and tiles, order and interleaving that move them."""
    best: list[dict[str, Any]] = [{} for _ in SIZES]
    for graph in graphs:
        for name in NAMED:
            for interleaving in INTERLEAVINGS[: 1 if len(graph.ops) == 1 else None]:
                schedule = il.Schedule(il.H200.sms, order=ORDERS.parse(name), interleaving=interleaving)
                plan = il.build(graph, schedule)
                written = count_traffic(plan, il.H200, MODE).traffic.written_bytes
                for at, read in enumerate(predict_dram_reads(plan, il.H200, SIZES, MODE)):
                    if not best[at] or read + written < best[at]["bytes"]:
                        tile = format_tiling(graph)
                        best[at] = {
                            "bytes": read + written,
                            "tiles": tile,
                            "order": name,
                            "interleaving": str(interleaving),
                        }
    return best


def find_counted(sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Return the least loads and stores that were counted of a matmul."""
    record = json.loads((RESULTS / "traffic-h200.json").read_text())
    rows = [row for row in record["rows"] if (row["m"], row["n"], row["k"]) == sizes]
    row = min(rows, key=lambda each: each["dram_read_bytes"] + each["dram_write_bytes"])
    moved = row["dram_read_bytes"] + row["dram_write_bytes"]
    return {"bytes": moved, "tiles": row["tile"], "order": row["order"], "l2_bytes": il.H200.l2_bytes}


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
        "predicted": predict_best(problem.graphs) if problem.graphs else None,
        "counted": find_counted(problem.counted) if problem.counted else None,
    }


def main(path: str) -> None:
    """Compute, print and record."""
    rows = []
    for problem in list_problems():
        row = measure(problem)
        rows.append(row)
        for at in (0, len(SIZES) // 2, -1):
            shown = {key: row[f"{key}_bytes"][at] for key in ("safe", "leading", "tiling")}
            if row["predicted"]:
                shown["predicted"] = row["predicted"][at]["bytes"]
            listed = ", ".join(f"{key} {value / 1e6:,.0f} MB" for key, value in shown.items() if value)
            print(f"{problem.title}, {SIZES[at] / (1 << 20):.0f} MiB: {listed}", flush=True)
    protocol = "loads and stores, by size of an L2 of two sides; nothing was measured but what is called counted"
    figures = {"sizes_bytes": SIZES, "rows": rows}
    write_cpu_record(Path(path), format_command(Path(path)), protocol, MEASURES, figures, ("numba", "numpy"))


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record"))
