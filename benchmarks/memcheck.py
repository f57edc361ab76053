"""Every executor on every graph, for ``compute-sanitizer --tool memcheck python benchmarks/memcheck.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gpu.cases import EXECUTORS, GRAPHS, case, executor, relative_error


def main() -> None:
    for graph in GRAPHS:
        for m in (17, 128):
            c = case(graph, m, "bf16")
            inputs = c.inputs(seed=0)
            gold = c.answer({name: value.double() for name, value in inputs.items()})
            for name in EXECUTORS:
                run = executor(name, c.graph, timeout_s=60.0)
                for _ in range(2):
                    out = c.poisoned()
                    run.run({**inputs, c.output: out})
                run.synchronize()
                if not relative_error(out, gold) < 1e-2:
                    sys.exit(f"{name} is wrong on {graph}, M = {m}")
    print("every executor ran and was right")


if __name__ == "__main__":
    main()
