"""Measure the cost of recording a trace: time per run with and without, replays interleaved.

python benchmarks/trace_overhead.py benchmarks/results/trace-h200.json
"""

from __future__ import annotations

from pathlib import Path

from script import format_command, parse_arguments

import interlace as il
from interlace.bench.problem import BenchProblem
from interlace.bench.record import write_record
from interlace.bench.timing import time_medians
from interlace.deploy import current_device
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.workloads import MODELS, FeedForward, ffn

MEASURES = (
    "executors/device.py",
    "executors/persistent.py",
    "megakernel/table.py",
    "kernels/abi",
    "kernels/matmul",
    "kernels/primitives",
    "kernels/templates.py",
    "planner/build.py",
    "planner/retile.py",
    "planner/waits.py",
)
SHAPES = (("llama3-8b", 16), ("llama3-8b", 1024))


def overhead(model: str, m: int) -> dict[str, float]:
    """Microseconds per run of the persistent executor without and with a trace."""
    problem = BenchProblem(FeedForward.from_fields({"m": m}, True, model), current_device())
    plan = il.autoplan(ffn(m, MODELS[model]), executor=PersistentTicketExecutor)
    calls = {}
    for name, trace in (("without_us", False), ("with_us", True)):
        executor = il.PersistentExecutor(plan, il.RunOptions(trace=trace, dependent_launch=True))
        calls[name] = problem.make_rotation(problem.make_run(executor))
    return {name: t.median_us for name, t in time_medians(calls, 31, problem.runs).items()}


def main(record: str | None = None) -> None:
    rows = [{"model": model, "m": m, **overhead(model, m)} for model, m in SHAPES]
    for row in rows:
        print(f"{row['model']}, M = {row['m']}: {100 * (row['with_us'] / row['without_us'] - 1):.2f} % overhead")
    if record is not None:
        protocol = "CUDA-graph replays, interleaved, median of 31 rounds, weights rotated past the L2"
        write_record(Path(record), format_command(Path(record)), protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main(*parse_arguments(__doc__, optional=("record",)))
