"""Predictions that docs/related.md compares with published work; needs no GPU.

    python benchmarks/related.py --out benchmarks/results/related-predicted.json

The chain is that of BERT's attention in Chimera's benchmark without a softmax: 12 heads of two matmuls, (M, N, K, L) =
(512, 64, 64, 512). Its bytes from memory are predicted over sizes of the L2 for three plans: all first matmuls before
all second ones, a launch each; head by head, a launch each; and one launch as the planner searches it.

The widths are columns of one matmul of 1,024 tokens by 4,096, in tiles of 128 x 128. Each is predicted as a launch in
row-major order, as the planner's best launch in these tiles (``interlace explain one-matmul --executor cuda_graph
--tile 128x128x64``), and in the megakernel's tiles, as the rules choose them.
"""

from __future__ import annotations

from typing import Any

from script import format_command, parse_out

from interlace.bench.record import write_cpu_record
from interlace.core.devices import H200
from interlace.core.dtypes import bf16
from interlace.deploy import autoplan
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import CudaGraphExecutor
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import MatmulTile, matmul
from interlace.plan.plan import Plan
from interlace.planner.build import build
from interlace.planner.explain import report_ops
from interlace.planner.predict import predict, predict_dram_reads
from interlace.planner.search import search
from interlace.policies.schedule import Schedule
from interlace.sim.modes import Mode
from interlace.workloads import one_matmul

MEASURES = ("core/devices", "kernels/matmul", "planner", "policies", "sim")
PROTOCOL = (
    "predicted for an NVIDIA H200, one cold run each; the L2 of other sizes has the same number of sides; times of "
    "launches at the rates that plain Triton bodies reach"
)
#: Heads, then M, N, K, L of the chain.
HEADS, EXTENTS = 12, (512, 64, 64, 512)
#: Sizes of the L2 in MiB; the last is an H200's.
CAPACITIES_MIB = (1, 2, 4, 8, 16, 60)
TOKENS, REDUCTION, WIDTHS = 1024, 4096, tuple(range(1024, 6145, 512))
TILE = MatmulTile(128, 128, 64, 4, 8)


def build_chain(heads: int, extents: tuple[int, int, int, int], *, head_by_head: bool) -> Graph:
    """Build two matmuls for each head: (M, K) by (K, L), then (M, L) by (L, N)."""
    m, n, k, l = extents
    tensors: list[Tensor] = []
    first, second = [], []
    for head in range(heads):
        shapes = {"a": (m, k), "b": (l, k), "c": (n, l), "d": (m, l), "out": (m, n)}
        t = {name: Tensor(f"{name}{head}", shape, bf16) for name, shape in shapes.items()}
        tensors += t.values()
        first.append(matmul(f"first{head}", t["a"], t["b"], t["d"]))
        second.append(matmul(f"second{head}", t["d"], t["c"], t["out"]))
    pairs = [op for pair in zip(first, second, strict=True) for op in pair]
    inputs = tuple(f"{name}{head}" for head in range(heads) for name in "abc")
    outputs = tuple(f"out{head}" for head in range(heads))
    return Graph("chain", tuple(tensors), tuple(pairs if head_by_head else first + second), inputs, outputs)


def predict_chain(heads: int = HEADS, capacities_mib: tuple[int, ...] = CAPACITIES_MIB) -> list[dict[str, Any]]:
    """Return bytes read from memory by plan and size of the L2."""
    by_op, by_head = (build_chain(heads, EXTENTS, head_by_head=each) for each in (False, True))
    plans = {
        "op by op": (autoplan(by_op, H200, CudaGraphExecutor), CudaGraphExecutor),
        "head by head": (autoplan(by_head, H200, CudaGraphExecutor), CudaGraphExecutor),
        "one launch": (autoplan(by_head, H200, MegakernelExecutor, search=True), MegakernelExecutor),
    }
    rows = []
    for name, (plan, kind) in plans.items():
        mode = kind.build_mode(plan.graph, H200)
        read = predict_dram_reads(plan, H200, [mib << 20 for mib in capacities_mib], mode)
        traffic = predict(plan, H200, mode).traffic
        figures = dict(zip(map(str, capacities_mib), read, strict=True))
        passed_on = sum(plan.graph.tensor(tensor).nbytes for tensor in plan.graph.intermediates)
        rows.append({"plan": name, "read_bytes": figures, "compulsory_bytes": traffic.compulsory_bytes})
        rows[-1]["passed_on_bytes"] = passed_on
    return rows


def predict_width(columns: int) -> dict[str, Any]:
    """Return tiles, waves and predicted microseconds of a matmul with so many columns."""
    graph = one_matmul(TOKENS, columns, REDUCTION, bf16, TILE)
    mode = CudaGraphExecutor.build_mode(graph, H200)
    plain = build(graph, Schedule(H200.sms))
    (report,) = report_ops(predict(plain, H200, mode), H200, mode)
    best = search(graph, H200, mode, dispatches=CudaGraphExecutor.dispatches).best
    ruled = autoplan(one_matmul(TOKENS, columns, REDUCTION), H200, MegakernelExecutor)
    return {
        "columns": columns,
        "tiles": report.tiles,
        "waves": report.waves,
        "last_wave_idle": report.tail,
        "row_major_us": _predict_us(plain, mode),
        "explained_us": best.us,
        "explained_split": str(best.schedule.split),
        "megakernel_us": _predict_us(ruled, MegakernelExecutor.build_mode(ruled.graph, H200)),
    }


def _predict_us(plan: Plan, mode: Mode) -> float:
    return predict(plan, H200, mode).us


def main() -> None:
    """Predict, print, and write the record if a path is given."""
    out = parse_out(__doc__)
    chain, widths = predict_chain(), [predict_width(columns) for columns in WIDTHS]
    for row in chain:
        read = ", ".join(f"{mib} MiB {nbytes / 1e6:.2f}" for mib, nbytes in row["read_bytes"].items())
        print(f"{row['plan']:13} {read} MB; compulsory {row['compulsory_bytes'] / 1e6:.2f}")
    for row in widths:
        us = ", ".join(f"{name[:-3]} {row[name]:.1f}" for name in ("row_major_us", "explained_us", "megakernel_us"))
        print(f"{row['columns']} columns, {row['waves']:.2f} waves: {us} us")
    if out is not None:
        command = format_command(out).replace(" benchmarks/results", " --out benchmarks/results")
        write_cpu_record(out, command, PROTOCOL, MEASURES, {"chain": chain, "widths": widths}, ("numba", "numpy"))


if __name__ == "__main__":
    main()
