"""Attention's output product and the FFN after it, 8,192 tokens: rows first and op by op in one launch, and PyTorch.

    python benchmarks/training_shapes.py --predict benchmarks/results/training-shapes-predicted.json
    python benchmarks/training_shapes.py benchmarks/results/training-shapes-h200.json

The first command needs no GPU: it predicts bytes and time of every order. The second needs a Hopper GPU and ``ncu``. It
times all orders and PyTorch, interleaved in CUDA graphs, after each order was checked against float64 over outputs full
of NaN. Then it counts the bytes and the hits in the L2 of one cold launch of each; of PyTorch, of one eager run.

All orders share tiles and kernels. *Op by op* runs all tiles of an op before the next op. *Rows first* runs all ops of
a band of tokens before the next band; with a lag, an op runs one band after the op before it, so that no tile waits for
one that is still running. *In slices* cuts the FFN's width too: the tiles of a slice of ``hidden`` are followed by the
products that read it, at the price of partial sums.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from script import format_command, format_error, make_parser

import interlace as il
from interlace.bench.compile import compile_launches
from interlace.bench.counters import count_launches
from interlace.bench.gpu_lock import lock_autotuning
from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.profile import METRICS
from interlace.bench.record import read_matching_rows, write_cpu_record, write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol, time_medians, time_rounds
from interlace.bench.workload import MODES
from interlace.core.devices import DeviceSpec
from interlace.deploy import current_device, make_executor
from interlace.executors.gpu import get_torch_dtype
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.planner.predict import FINE, predict
from interlace.policies.interleavings import Interleaving, OpMajorItems
from interlace.policies.schedule import Schedule
from interlace.workloads import OutputFFN

TOKENS = 8192
PRESETS = "relu", "llama3-8b"
REPEATS = 30
PROTOCOL = (
    f"CUDA graphs of four runs each, {describe_protocol(REPEATS)}, random inputs in bf16, two sets of weights in turn, "
    "checked against float64 over outputs full of NaN; bytes and hits by ncu, one launch each, caches flushed before "
    "every kernel, clocks as they are; of PyTorch, all kernels of one eager run"
)
PREDICTED = "predicted for an NVIDIA H200, one cold run each, in the megakernel's tiles"
PREDICTS = "core/devices", "kernels/matmul", "planner", "policies", "sim"
COUNTS = METRICS | {
    "l2_sectors": "lts__t_sectors.sum",
    "l2_hits": "lts__t_sectors_lookup_hit.sum",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_read_hits": "lts__t_sectors_op_read_lookup_hit.sum",
}
EAGER = "PyTorch eager"


@dataclass(frozen=True)
class RowSlices(Interleaving):
    """A band of tokens, and in it a slice of the FFN's width, at a time: ``up`` of the slice, then ``down`` over it.

    Attributes:
        bands, slices: number of each; ``down`` is split into as many parts as there are slices.
    """

    bands: int
    slices: int

    def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: Ints) -> Ints:
        graph = dependencies.graph
        band, part = np.zeros((2, len(parts.op)), np.int64)
        for n, op in enumerate(graph.ops):
            mine = parts.op == n
            coords = op.compute_coords(parts.tile[mine])
            band[mine] = coords[:, 0] * self.bands // op.grid[0]
            if op.name == "up":
                part[mine] = 1 + coords[:, 1] * self.slices // op.grid[1]
            elif op.name == "down":
                part[mine] = 1 + parts.k_lo[mine] * self.slices // op.k_extent
        return np.lexsort((np.arange(len(band)), parts.op, part, band)).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """An order of all items, with the dispatch and the split that it needs; no dispatch for the default one."""

    interleaving: Interleaving = field(default_factory=il.OpAfterOp)
    dispatch: il.Dispatch | None = il.Dispatch.TICKET
    slices: int = 1

    def make_schedule(self, graph: Graph, device: DeviceSpec) -> Schedule:
        """Return the default schedule in this order."""
        schedule = MegakernelExecutor.select_default(graph, device)
        if self.slices > 1:
            schedule = replace(schedule, split={"down": il.SplitK(self.slices)})
        return replace(schedule, dispatch=self.dispatch or schedule.dispatch, interleaving=self.interleaving)


#: Orders by name. Row panels are those of the output product's tiles, 128 tokens each.
ORDERS = {
    "op by op": Order(),
    "op by op, as planned": Order(dispatch=None),
    "rows first, 128 tokens": Order(il.RowPanels(1)),
    "rows first, 256 tokens": Order(il.RowPanels(2)),
    "rows first, 512 tokens": Order(il.RowPanels(4)),
    "rows first, 1024 tokens": Order(il.RowPanels(8)),
    "rows first, 1024 tokens, lag": Order(il.RowPanels(8, lag=1)),
    "rows first, 2048 tokens, lag": Order(il.RowPanels(16, lag=1)),
    "rows first, 4096 tokens": Order(il.RowPanels(32)),
    "rows first, 1024 tokens, 8 slices": Order(RowSlices(8, 8), slices=8),
}


def make_workload(preset: str) -> OutputFFN:
    """Return the workload of a preset."""
    return OutputFFN.from_fields({"m": TOKENS}, True, preset)


def list_orders(graph: Graph, device: DeviceSpec) -> dict[str, Schedule]:
    """Return the schedules of all orders by name, without those that equal an earlier one."""
    found: dict[str, Schedule] = {}
    for name, order in ORDERS.items():
        schedule = order.make_schedule(graph, device)
        if schedule not in found.values():
            found[name] = schedule
    return found


# ---------------------------------------------------------------- prediction


def predict_orders(preset: str) -> dict[str, Any]:
    """Return the predicted bytes, hit rate and microseconds of every order."""
    work = make_workload(preset)
    graph = work.build_graph(il.H200)
    mode = MegakernelExecutor.build_mode(graph, il.H200)
    row: dict[str, Any] = {"preset": preset, "workload": work.to_data(), "orders": {}}
    row["flops_us"] = work.flops / il.H200.flops_per_s(graph.tensors[0].dtype) * 1e6
    for name, schedule in list_orders(graph, il.H200).items():
        found = predict(il.build(graph, schedule), il.H200, mode, limit=FINE)
        traffic = found.traffic
        row["compulsory_bytes"] = traffic.compulsory_bytes
        row["orders"][name] = {
            "us": found.us,
            "dram_read_bytes": traffic.dram_read,
            "dram_write_bytes": traffic.written_bytes,
            "l2_hit_pct": 100 * traffic.hit_rate,
            "read_bytes": dict(traffic.read_bytes),
        }
        figures = f"{found.us:.0f} us, {traffic.dram_read / 1e6:.0f} MB read, {100 * traffic.hit_rate:.1f} % hits"
        print(f"{preset:10} {name:34} {figures}", flush=True)
    return row


# ---------------------------------------------------------------- times


def make_rivals(problem: BenchProblem) -> dict[str, Callable[[], Callable[[], None]]]:
    """Return makers of PyTorch's variants by name: max-autotune with weights as they are, others also transposed."""
    import torch

    lock_autotuning()
    torch.compiler.reset()

    def make(mode: str | None, weights: list[Tensors]) -> Callable[[], None]:
        function = problem.run_pytorch if mode is None else torch.compile(problem.run_pytorch, mode=mode, dynamic=False)
        problem.check_function(function, "PyTorch", weights)
        return problem.make_rotation(function, weights)

    stored = {"": list(problem.weights), ", transposed weights": problem.transpose_weights()}
    return {
        f"PyTorch {label}{suffix}": partial(make, mode, weights)
        for label, mode in MODES.items()
        for suffix, weights in stored.items()
        if not (suffix and label == "max-autotune")
    }


def time_orders(preset: str) -> dict[str, Any]:
    """Return times, clocks and errors of PyTorch and of every order."""
    device, work = current_device(), make_workload(preset)
    graph = work.build_graph(device)
    makers = {
        name: partial(make_executor, graph, device, MegakernelExecutor, schedule)
        for name, schedule in list_orders(graph, device).items()
    }
    for _ in compile_launches(list(makers.values())):
        pass
    problem = BenchProblem(work, device)
    row: dict[str, Any] = {"pytorch_relative_error": problem.pytorch_error, "flops_us": problem.flops_us}
    calls, errors, row["left_out"] = {}, {}, {}
    for name, make in makers.items():
        executor = make()
        errors[name] = problem.check(executor)
        calls[name] = problem.make_rotation(problem.make_run(executor))
    for name, rival in make_rivals(problem).items():
        try:
            call = rival()
            time_medians({name: call}, 1)
        except Exception as error:  # noqa: BLE001  the others go on
            row["left_out"][name] = format_error(error)
        else:
            calls[name] = call
    rounds = time_rounds(calls, REPEATS, problem.runs, read_clocks=True)
    mhz: Mapping[str, float] = {} if rounds.clocks is None else rounds.clocks.sm_mhz
    row["watts"] = None if rounds.clocks is None else rounds.clocks.watts
    row["library"] = rounds.find_fastest(name for name in calls if name not in makers)
    row["timed"] = {
        name: asdict(timing)
        | {"sm_mhz": mhz.get(name), "over_library": rounds.compute_ratio(row["library"], name)}
        | {"over_op_by_op": rounds.compute_ratio("op by op", name)}
        | ({"relative_error": errors[name]} if name in errors else {})
        for name, timing in rounds.times.items()
    }
    for name, figures in row["timed"].items():
        ratios = f"{figures['over_library']:.3f}x of PyTorch, {figures['over_op_by_op']:.3f}x of op by op"
        print(f"{preset:10} {name:34} {figures['median_us']:.0f} us, {ratios}", flush=True)
    return row


# ---------------------------------------------------------------- counters


def count_orders(preset: str) -> dict[str, Any]:
    """Return the counters of one launch of every order, and of PyTorch's eager run."""
    device = current_device()
    names = list(list_orders(make_workload(preset).build_graph(device), device))
    child = [sys.executable, __file__, "--child", preset]
    own = count_launches(child, MegakernelExecutor.kernel, COUNTS)
    found = dict(zip(names, own, strict=True))
    kernels = count_launches([*child, "--eager"], ".*", COUNTS)
    found[EAGER] = {name: sum(each[name] for each in kernels) for name in COUNTS} | {"kernels": len(kernels)}
    for name, counts in found.items():
        counts["l2_hit_pct"] = 100 * counts["l2_hits"] / counts["l2_sectors"]
        counts["l2_read_hit_pct"] = 100 * counts["l2_read_hits"] / counts["l2_read_sectors"]
        moved = f"{counts['dram_read_bytes'] / 1e6:.0f} MB read, {counts['dram_write_bytes'] / 1e6:.0f} MB written"
        hits = f"{counts['l2_hit_pct']:.1f} % hits, {counts['l2_read_hit_pct']:.1f} % of reads"
        print(f"{preset:10} {name:34} {moved}, {hits}, {counts['ns'] / 1e3:.0f} us", flush=True)
    return {"counted": found}


def run_child(preset: str, *, is_eager: bool) -> None:
    """Run every order once, or PyTorch eagerly once, for the profiler; nothing else launches a kernel of PyTorch."""
    import torch

    device, work = current_device(), make_workload(preset)
    graph = work.build_graph(device)
    some = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    tensors = {}
    for tensor in (graph.tensor(name) for name in graph.inputs):
        values = np.resize(some * np.float32(work.get_deviation(tensor)), tensor.shape)
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)  # bf16, rounded towards zero
        tensors[tensor.name] = torch.from_numpy(bits).cuda().view(get_torch_dtype(torch, tensor.dtype.name))
    if is_eager:
        work.run_dense(torch, tensors)
        torch.cuda.synchronize()
        return
    out = torch.empty(graph.tensor("out").shape, dtype=torch.bfloat16, device="cuda")
    for schedule in list_orders(graph, device).values():
        executor = make_executor(graph, device, MegakernelExecutor, schedule, il.RunOptions())
        executor.run({**tensors, "out": out})
        executor.synchronize()


PARTS = {"timed": time_orders, "counted": count_orders}


def main() -> None:
    """Predict, or measure, print and record."""
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--predict", type=Path, metavar="PATH", help="predict only, without a GPU")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure only this; both by default")
    parser.add_argument("--preset", action="append", choices=PRESETS, help="measure only this; both by default")
    parser.add_argument("--child", choices=PRESETS, help="run once, for the profiler")
    parser.add_argument("--eager", action="store_true", help="with --child: PyTorch")
    given = parser.parse_args()
    if given.child is not None:
        return run_child(given.child, is_eager=given.eager)
    if given.predict is not None:
        rows = [predict_orders(preset) for preset in PRESETS]
        command = format_command(given.predict).replace(" benchmarks/results", " --predict benchmarks/results")
        return write_cpu_record(given.predict, command, PREDICTED, PREDICTS, {"rows": rows}, ("numba", "numpy"))
    if given.path is None:
        parser.error("give the path of the record, or --predict PATH")
    graphs = [make_workload(preset).build_graph(current_device()) for preset in PRESETS]
    measures = sorted({"kernels/matmul", *(room for graph in graphs for room in list_launch_sources(graph))})
    found = {row["preset"]: row for row in read_matching_rows(given.path, measures)}
    for part in given.part or PARTS:
        for preset in given.preset or PRESETS:
            row = found.setdefault(preset, {"preset": preset, "workload": make_workload(preset).to_data()})
            row.update(PARTS[part](preset))
            listed = [found[each] for each in PRESETS if each in found]
            write_record(given.path, format_command(given.path), PROTOCOL, measures, {"rows": listed})
    return None


if __name__ == "__main__":
    main()
