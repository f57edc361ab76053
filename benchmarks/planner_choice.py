"""Does the planner choose well? Many plans of six FFNs, predicted, then measured.

    python benchmarks/planner_choice.py benchmarks/results/planner-h200.json

Needs a Hopper GPU. Of each FFN two tilings under six orders, what the planner's search ends with, variants of its
splits, and the default of the executor, which measurements made; all of one FFN are replayed interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from script import format_command, parse_arguments

import interlace as il
from interlace.bench.compile import compile_launches
from interlace.bench.problem import BenchProblem
from interlace.bench.record import write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import time_medians
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.bodies import Params
from interlace.kernels.matmul.tilings import count_weights
from interlace.planner.predict import predict
from interlace.planner.retile import retile
from interlace.planner.search import make_plan_key, search
from interlace.sim.modes import make_megakernel_mode
from interlace.workloads import FeedForward

WORKLOADS = (("relu", 256), ("relu", 1024), ("relu", 4096), ("swiglu", 1024), ("gelu", 512), ("gelu", 2048))
WIDTHS = (256, 128)
ORDERS = (il.RowMajor(), *map(il.GroupedColumnMajor, (2, 4, 8, 16)), il.Hilbert())
MODE = make_megakernel_mode(192 << 10)


@dataclass(frozen=True)
class Contest:
    """Plans of one FFN by name: the planner's choice, row-major in the same tiles, and the default."""

    plans: dict[str, il.Plan]
    chosen: str
    plain: str
    default: str


def in_width(graph: il.Graph, width: int) -> dict[str, Params]:
    """Tiles of 128 tokens by so many weight rows; with a gate of 128, whose sums take as many registers."""
    widths = {op.name: min(width, 128) if count_weights(op) == 2 else width for op in graph.ops}
    tiles = {name: il.MatmulTile(128, n, 64, num_warps=8) for name, n in widths.items()}
    return {name: dict(tile.params) for name, tile in tiles.items()}


def contest(row: str, m: int) -> Contest:
    """No two of the plans are alike."""
    graph = FeedForward.from_fields({"m": m}, True, row).build_graph(il.H200)
    graphs = [retile(graph, in_width(graph, width)) for width in WIDTHS]
    found = search(graphs, il.H200, MODE)
    listed = [candidate.prediction.plan for candidate in (*found.ranking, found.baseline)]
    listed += [il.build(graph, il.Schedule(132, order=order)) for graph in graphs for order in ORDERS]
    for candidate in found.ranking:
        for undone in ({"split": il.WholeTiles()}, {"policy": il.TileSync()}):
            listed.append(il.build(candidate.graph, replace(candidate.schedule, **undone)))
    default = il.autoplan(graph, il.H200, MegakernelExecutor)
    listed.append(default)
    unlike = {make_plan_key(plan): plan for plan in reversed(listed)}
    names = {key: _name(plan) for key, plan in unlike.items()}
    marked = (found.best.prediction.plan, found.baseline.prediction.plan, default)
    return Contest({names[key]: plan for key, plan in unlike.items()}, *(names[make_plan_key(plan)] for plan in marked))


def _name(plan: il.Plan) -> str:
    tile = plan.graph.ops[-1].parameters
    return f"{tile['BM']}x{tile['BN']}x{tile['BK']}, {plan.order}, {plan.policy}"


def executor(plan: il.Plan) -> il.MegakernelExecutor:
    """Ready to run."""
    return il.MegakernelExecutor(plan, il.RunOptions(dependent_launch=True))


def main(path: str) -> None:
    """Predict, measure, print and record."""
    contests = {workload: contest(*workload) for workload in WORKLOADS}
    plans = [plan for each in contests.values() for plan in each.plans.values()]
    for _ in compile_launches([partial(executor, plan) for plan in plans]):
        pass
    rows = []
    for (row, m), task in contests.items():
        problem = BenchProblem(FeedForward.from_fields({"m": m}, True, row), il.H200)
        executors = {name: executor(plan) for name, plan in task.plans.items()}
        for each in executors.values():
            problem.check(each)
        calls = {name: problem.make_rotation(problem.make_run(each)) for name, each in executors.items()}
        times = time_medians(calls, 10, calls=problem.runs)
        predicted = {name: predict(plan, il.H200, MODE) for name, plan in task.plans.items()}
        best = min(times.values(), key=lambda t: t.median_us).median_us
        chosen, plain, default = (times[name].median_us for name in (task.chosen, task.plain, task.default))
        print(f"{row} {m}: {task.chosen}: {chosen:.1f} us, best {best:.1f}, default {default:.1f}, plain {plain:.1f}")
        listed = []
        for name in sorted(times, key=lambda name: times[name].median_us):
            p = predicted[name]
            listed.append({"plan": name, "us": times[name].median_us, "predicted_us": p.us})
            listed[-1]["predicted_dram_read_bytes"] = p.traffic.dram_read
            megabytes = p.traffic.dram_read / 1e6
            print(f"    {times[name].median_us:8.1f} us, predicted {p.us:8.1f}, {megabytes:7.0f} MB  {name}")
        ratios = {"over_best": chosen / best, "over_default": chosen / default, "plain_over_chosen": plain / chosen}
        names = {"chosen": task.chosen, "plain": task.plain, "default": task.default}
        rows.append({"row": row, "m": m, **names, **ratios, "plans": listed})
    mean = geometric_mean([r["plain_over_chosen"] for r in rows])
    worst = max(r["over_best"] for r in rows)
    count = sum(len(r["plans"]) for r in rows)
    print(f"{count} plans; chosen over best at most {worst:.3f}; row-major over chosen {mean:.3f} in the mean")
    protocol = "CUDA graphs, plans of an FFN interleaved, median of 10 rounds, weights rotated past the L2, bf16"
    figures = {"rows": rows, "worst_over_best": worst, "mean_plain_over_chosen": mean}
    measures = {*list_launch_sources(FeedForward.from_fields({}, True).build_graph(il.H200)), "planner", "sim"}
    write_record(Path(path), format_command(Path(path)), protocol, sorted(measures), figures)


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record"))
