"""Records as a benchmark would write them, with made-up times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interlace.bench.row import Comparison, ProblemResult, Variant, VariantTimes
from interlace.bench.timing import Timing
from interlace.core.devices import H200
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import CudaGraphExecutor
from interlace.policies.sync import TileSync
from interlace.workloads import FeedForward


def make_times(us: float) -> VariantTimes:
    return VariantTimes(Timing(us, 0.99 * us, 1.01 * us), us)


def result(preset: str, m: int, ours_us: float) -> ProblemResult:
    """A row whose baseline, torch.compile, takes 100 us, and whose floor takes 80 us."""
    problem = FeedForward.from_fields({"m": m}, True, preset)
    libraries = {"eager": make_times(110.0), "compile": make_times(100.0), "max-autotune": make_times(120.0)}
    executors = {"cuda_graph": make_times(130.0), "one_launch": make_times(ours_us)}
    graph = problem.build_graph(H200)
    variants = {
        kind.name: Variant(graph, H200, kind, replace(kind.select_default(graph, H200), policy=TileSync()))
        for kind in (CudaGraphExecutor, MegakernelExecutor)
    }
    layer = Comparison(
        {name: make_times(time.timing.median_us + 8.0) for name, time in libraries.items()},
        {name: make_times(time.timing.median_us + 6.0) for name, time in executors.items()},
    )
    errors = dict.fromkeys(executors, 2.3e-3)
    alone = Comparison(libraries, executors)
    return ProblemResult(
        preset, problem, alone, layer, variants, errors, 2.2e-3, make_times(80.0).timing, 80.0, {"pdl": "why"}
    )


def ffn_record() -> dict[str, Any]:
    """Every row, ours at 90 us, but 125 us where m is 8192."""
    rows = [(name, m) for name, kept in FeedForward.record.items() for m in kept.sizes]
    return {
        "gpu": "some GPU",
        "versions": {"torch": "2.11.0+cu130", "triton": "3.6.0"},
        "sources": {},
        "date": "2026-01-01",
        "command": "interlace bench ffn",
        "rows": [result(name, m, 125.0 if m == 8192 else 90.0).to_data() for name, m in rows],
        "means": [{"preset": "relu", "sizes": [512, 8192], "geometric_mean": 1.04, "target": 1.0}],
    }
