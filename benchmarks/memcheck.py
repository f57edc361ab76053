"""Every executor on every graph, for ``compute-sanitizer --tool memcheck python benchmarks/memcheck.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import interlace as il
from tests.cases import GRAPHS, Case, relative_error
from tests.gpu.cases import EXECUTORS, case, executor, ffn_shape, one_launch


def check(name: str, run: il.SerialExecutor | il.OneLaunchExecutor, c: Case) -> None:
    """Run twice, the second time on counters that the first left behind; exit if the answer is wrong."""
    inputs = c.inputs(seed=0)
    for _ in range(2):
        out = c.poisoned()
        run.run({**inputs, c.output: out})
    run.synchronize()
    if not relative_error(out, c.exact(inputs)) < 1e-2:
        sys.exit(f"{name} is wrong on {c.graph.name}, {c.graph.tensor(c.output)}")


def main() -> None:
    for graph in GRAPHS:
        for m in (17, 128):
            c = case(graph, m, "bf16")
            for name in EXECUTORS:
                check(name, executor(name, c.graph, timeout_s=60.0), c)
    for kind in ("relu", "gated"):
        for m in (16, 300):
            for dependent in (False, True):
                run, c = one_launch(m, ffn_shape(kind, 400, 1104), timeout_s=60.0, dependent_launch=dependent)
                check(run.name, run, c)
    print("every executor ran and was right")


if __name__ == "__main__":
    main()
