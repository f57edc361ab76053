"""Every executor on every graph, and the one launch on FFNs and decode steps, for the CUDA sanitizers.

    PYTHONPATH=src compute-sanitizer --tool memcheck python benchmarks/memcheck.py
    PYTHONPATH=src compute-sanitizer --tool racecheck python benchmarks/memcheck.py --races

The second runs the one launch alone; with names of its parts, these. Answers are compared with float64 ones. Racecheck
takes what a thread stores to be seen by those who wait for a barrier at which that thread itself arrives. In the launch
the lanes of a warp store, or read, and meet, and one of them arrives (``ring/ring.cuh``, messages), which is as good
by PTX's memory model. So with ``--races`` all lanes arrive there, and nothing else is changed. In clusters, and where a
warp brings words into the ring for others, one lane still arrives for all; neither is run here.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from script import make_parser

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import interlace as il
from interlace import csrc
from interlace.workloads import NormedMatmuls
from tests.cases import GRAPHS, Case, by_default, ffn_shape, relative_error
from tests.gpu.cases import EXECUTORS, case, executor, one_launch
from tests.gpu.test_decode import SHAPES, go_on, problem, tensors
from tests.gpu.test_decode import check as check_logits
from tests.gpu.test_rows import is_right

_TIMEOUT_S = 60.0
#: Batches of steps whose tokens are words, in tiles of few rows, and in tiles of 64.
_BATCHES = (1, 3, 16, 40)
_PARTS = "relu", "gated", "layers", "normed", "steps"
#: Messages if one lane arrives and if all do, and the arrivals that complete a phase.
_ARRIVALS = {
    "if (lane == 0) mbarrier_arrive(sent(": "mbarrier_arrive(sent(",
    "if (first_lane()) mbarrier_arrive(received(": "mbarrier_arrive(received(",
    "mbarrier_init(sent(t), 1)": "mbarrier_init(sent(t), 32)",
    "mbarrier_init(received(t), WARPGROUPS * 4 + 2)": "mbarrier_init(received(t), 32 * (WARPGROUPS * 4 + 2))",
}


def check(name: str, run: il.SerialExecutor | il.MegakernelExecutor, c: Case) -> None:
    """Run twice, the second time on counters that the first left behind; exit if the answer is wrong."""
    inputs = c.inputs(seed=0)
    for _ in range(2):
        out = c.make_poisoned_output()
        run.run({**inputs, c.output: out})
    run.synchronize()
    if not relative_error(out, c.compute_exact(inputs)) < 1e-2:
        sys.exit(f"{name} is wrong on {c.graph.name}, {c.graph.tensor(c.output)}")
    print(f"{name}: {c.graph.name}, {c.graph.tensor(c.output)}", flush=True)


def check_graphs() -> None:
    """Every executor on every graph."""
    for graph in GRAPHS:
        for m in (17, 128):
            c = case(graph, m, "bf16")
            for name in EXECUTORS:
                check(name, executor(name, c.graph, timeout_s=_TIMEOUT_S), c)


def check_ffns(kind: str) -> None:
    """FFNs of a kind in one launch."""
    for m in (1, 16, 64, 300):
        for dependent in (False, True):
            run, c = one_launch(m, ffn_shape(kind, 400, 1104), timeout_s=_TIMEOUT_S, dependent_launch=dependent)
            check(run.name, run, c)


def check_layer(m: int, kind: str) -> None:
    """A layer in one launch, whose up-projection normalises its rows."""
    check("one_launch, a layer", *one_launch(m, ffn_shape(kind, 448, 1088, norm=1e-2), timeout_s=_TIMEOUT_S))


def check_normed(m: int) -> None:
    """Two products in one launch, the second normalised by many sums of squares."""
    problem = NormedMatmuls(256, 4096, m)
    run = il.MegakernelExecutor(by_default(problem.build_graph(il.H200)), il.RunOptions(timeout_s=_TIMEOUT_S))
    is_right(run, problem)
    print(f"{run.name}: {problem.title}", flush=True)


def check_steps(batch: int) -> None:
    """A step with attention in splits, and the next."""
    work = problem(SHAPES["llama"], batch)
    graph = il.workloads.build_decode_graph(work.model, batch, work.cache_positions, il.H200)
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions(timeout_s=_TIMEOUT_S))
    t = tensors(work, graph, (130,) * batch)
    for _ in range(2):
        check_logits(run, work, t)
        go_on(t)
    print(f"one_launch: steps of {batch} sequences", flush=True)


def all_lanes_arrive() -> None:
    """In the text of all launches from now on."""
    read = csrc.read_header
    for one in _ARRIVALS:
        if one not in read("ring/ring.cuh") + read("roles.cuh"):
            sys.exit(f"the text of the launch has no {one!r}; change it here, too")

    def read_header(name: str) -> str:
        text = read(name)
        for one, every in _ARRIVALS.items():
            text = text.replace(one, every)
        return text

    csrc.read_header = read_header


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of the one launch: {', '.join(_PARTS)}; or all")
    parser.add_argument("--races", action="store_true", help="the one launch alone, as racecheck can follow it")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; use some of {', '.join(_PARTS)}")
    if given.races:
        all_lanes_arrive()
    elif not given.parts:
        check_graphs()
    parts = set(given.parts or _PARTS)
    for kind in sorted(parts & {"relu", "gated"}):
        check_ffns(kind)
    for m, kind in product((1, 16, 40, 100), ("relu", "gated")) if "layers" in parts else ():
        check_layer(m, kind)
    for m in (24, 100, 160) if "normed" in parts else ():
        check_normed(m)
    for batch in _BATCHES if "steps" in parts else ():
        check_steps(batch)
    print("all ran and were right")


if __name__ == "__main__":
    main()
