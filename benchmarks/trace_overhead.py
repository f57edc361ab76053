"""What recording a trace costs: time per run with and without, replays interleaved.

python benchmarks/trace_overhead.py benchmarks/results/trace-h200.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from arguments import given

import interlace as il
from interlace.bench.record import write_record
from interlace.bench.timing import time_medians
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.workloads import MODELS, ffn

MEASURES = (
    "executors/device.py",
    "executors/persistent.py",
    "megakernel/table.py",
    "kernels/abi",
    "kernels/matmul",
    "kernels/primitives",
    "kernels/templates.py",
    "planner/build.py",
    "planner/settings.py",
    "planner/waits.py",
)
SHAPES = (("llama3-8b", 16), ("llama3-8b", 1024))


def random(*extents: int) -> torch.Tensor:
    return (torch.randn(*extents, device="cuda") / extents[-1] ** 0.5).bfloat16()


def overhead(model: str, m: int) -> dict[str, float]:
    """Microseconds per run of the persistent executor without and with a trace."""
    shape = MODELS[model]
    graph = ffn(m, shape)
    plan = il.autoplan(graph, executor=PersistentTicketExecutor)
    sets = [{name: random(*graph.tensor(name).shape) for name in graph.inputs} for _ in range(3)]
    out = torch.empty(m, shape.hidden, device="cuda", dtype=torch.bfloat16)
    functions: dict[str, Any] = {}
    for name, trace in (("without_us", False), ("with_us", True)):
        executor = il.PersistentExecutor(plan, il.RunOptions(trace=trace, dependent_launch=True))

        def call(executor: il.PersistentExecutor = executor) -> None:
            for inputs in sets:
                executor.run({**inputs, "out": out})

        functions[name] = call
    return {name: t.median_us for name, t in time_medians(functions, repeats=31, calls=3).items()}


def main(record: str | None = None) -> None:
    rows = [{"model": model, "m": m, **overhead(model, m)} for model, m in SHAPES]
    for row in rows:
        print(f"{row['model']}, M = {row['m']}: {100 * (row['with_us'] / row['without_us'] - 1):.2f} % overhead")
    if record is not None:
        protocol = "CUDA-graph replays, interleaved, median of 31 rounds, weights rotated past the L2"
        command = "python benchmarks/trace_overhead.py"
        write_record(Path(record), command, protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main(*given(__doc__, optional=("record",)))
