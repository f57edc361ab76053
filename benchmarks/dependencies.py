"""How long it takes to find the dependencies of large graphs, to plan and to prove them, and how much is looked at.

    python benchmarks/dependencies.py --out benchmarks/results/dependencies-cpu.json --before TIMES

Nothing here needs a GPU. Each graph is measured in a process of its own, in CPU seconds (everything runs on one core),
the best of several runs. ``--times TIMES`` writes the figures alone, and works with other versions of the package on
PYTHONPATH: that is where the figures of ``--before`` come from. A graph that takes longer than ``--limit`` has none.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any

from script import make_parser, round_figure

import interlace as il
from interlace.graph.access import ALL, Access, Affine, Span, axes, constant_span
from interlace.graph.op import Op
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.schedule import Schedule

MEASURES = ("graph", "plan", "planner/build.py", "planner/waits.py")
ROUNDS = 3
WORKERS = 132
HEADS = 8
_, HEAD = axes(2)
PER_HEAD = HEAD.block(4)


def program(shapes: dict[str, tuple[int, ...]], ops: list[Op], outputs: tuple[str, ...]) -> il.Graph:
    tensors = tuple(il.Tensor(name, shape, il.fp32) for name, shape in shapes.items())
    written = {access.tensor for op in ops for access in op.writes}
    inputs = tuple(name for name in shapes if name not in written or name == "cache")
    return il.Graph("benchmark", tensors, tuple(ops), inputs, outputs)


def copy(name: str, source: str, target: str, grid: tuple[int, ...]) -> Op:
    own = tuple(axis.block(2) for axis in axes(len(grid)))
    return Op(name, "copy", grid, (Access("x", source, own),), (Access("y", target, own),))


def one_to_one(*grid: int) -> il.Graph:
    """Two copies, tile by tile."""
    shapes = dict.fromkeys("xyz", tuple(2 * n for n in grid))
    return program(shapes, [copy("first", "x", "y", grid), copy("second", "y", "z", grid)], ("z",))


def in_place(ops: int) -> il.Graph:
    """Each op updates one of eight parts of a cache, by heads."""

    def update(n: int) -> Op:
        part = (constant_span(n % 8 * 4, n % 8 * 4 + 4), PER_HEAD)
        return Op(f"update{n}", "add", (1, HEADS), (Access("x", "cache", part),), (Access("y", "cache", part),))

    return program({"cache": (32, 4 * HEADS)}, [update(n) for n in range(ops)], ("cache",))


def attention(ops: int) -> il.Graph:
    """Every other op appends a row to a cache, the next one reads all rows so far, by heads."""
    ops_made = []
    for n in range(ops // 2):
        row = constant_span(n, n + 1)
        new = (Access("x", "x", (row, PER_HEAD)),), (Access("y", "cache", (row, PER_HEAD)),)
        past = (Access("x", "cache", (constant_span(0, n + 1), PER_HEAD)),), (Access("y", "y", (row, PER_HEAD)),)
        ops_made += [Op(f"append{n}", "copy", (1, HEADS), *new), Op(f"attend{n}", "sum", (1, HEADS), *past)]
    return program(dict.fromkeys(("x", "cache", "y"), (ops // 2, 4 * HEADS)), ops_made, ("y",))


def build_rescaled(ops: int) -> il.Graph:
    """Every other op appends a row to a cache, the next one updates all of it, by heads."""
    whole = (ALL, PER_HEAD)
    ops_made = []
    for n in range(ops // 2):
        new = (Access("x", "x", whole),), (Access("y", "cache", (constant_span(n, n + 1), PER_HEAD)),)
        ops_made.append(Op(f"append{n}", "copy", (1, HEADS), *new))
        ops_made.append(
            Op(f"scale{n}", "add", (1, HEADS), (Access("x", "cache", whole),), (Access("y", "cache", whole),))
        )
    return program({"x": (1, 4 * HEADS), "cache": (ops // 2, 4 * HEADS)}, ops_made, ("cache",))


def causal(tiles: int) -> il.Graph:
    """Tile i reads what tiles 0 to i wrote."""
    (i,) = axes(1)
    reads, writes = (Access("k", "k", (Span(Affine(), i * 2 + 2),)),), (Access("y", "y", (i.block(2),)),)
    ops = [copy("keys", "x", "k", (tiles,)), Op("attend", "sum", (tiles,), reads, writes)]
    return program(dict.fromkeys("xky", (2 * tiles,)), ops, ("y",))


GRAPHS: dict[str, Callable[[], il.Graph]] = {
    "one to one, 2-D grid of 707 x 707 tiles": lambda: one_to_one(707, 707),
    "one to one, 3-D grid of 79 x 79 x 80 tiles": lambda: one_to_one(79, 79, 80),
    "100 ops in place, each on one of 8 parts": lambda: in_place(100),
    "500 ops in place, each on one of 8 parts": lambda: in_place(500),
    "cache: 100 ops, append a row, update all": lambda: build_rescaled(100),
    "cache: 500 ops, append a row, update all": lambda: build_rescaled(500),
    "cache: 100 ops, append a row, read all": lambda: attention(100),
    "cache: 500 ops, append a row, read all": lambda: attention(500),
    "causal attention, 4,096 tiles": lambda: causal(4096),
}


def measure(graph: il.Graph) -> dict[str, Any]:
    """CPU seconds of one run, and counts."""
    start = process_time()
    dependencies = il.Dependencies(graph)
    found = process_time()
    plan = build(graph, Schedule(WORKERS), dependencies)
    built = process_time()
    proof = verify(plan)
    seconds = {"dependencies": found - start, "build": built - found, "verify": process_time() - built}
    counts = {"tiles": sum(op.tiles for op in graph.ops), "dependencies": proof.edges, "waits": len(plan.waits)}
    looked_at = getattr(dependencies, "examined_boxes", None)  # older versions do not count
    return {"seconds": seconds, "counts": counts | ({"looked_at": looked_at} if looked_at else {})}


def best(name: str, limit: int, end: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    graph = GRAPHS[name]()
    runs = [measure(graph)]
    while len(runs) < ROUNDS and sum(sum(run["seconds"].values()) for run in runs) < limit / 4:
        runs.append(measure(graph))
    end.send(min(runs, key=lambda run: sum(run["seconds"].values())))


def figures(name: str, limit: int) -> dict[str, Any] | None:
    """The best run of a graph, None if it takes longer than ``limit`` seconds."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=best, args=(name, limit, there))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        return None
    finally:
        process.join()
    found["seconds"] = {step: round_figure(seconds) for step, seconds in found["seconds"].items()}
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, help="write a JSON record")
    parser.add_argument("--times", type=Path, help="write the figures alone")
    parser.add_argument("--before", type=Path, help="figures of another version, made with --times")
    parser.add_argument("--limit", type=int, default=900, help="CPU seconds for each graph (default: 900)")
    options = parser.parse_args()
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else {}
    rows, times = [], {}
    for name in GRAPHS:
        found = times[name] = figures(name, options.limit)
        print(f"{name}: {found}", flush=True)
        earlier = before.get(name)
        row = {"graph": name, **(found or {"seconds": None})}
        rows.append(row | ({"before": earlier["seconds"] if earlier else None} if name in before else {}))
    if options.times:
        options.times.write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
    if options.out:
        from interlace.bench.record import write_cpu_record

        protocol = (
            f"CPU seconds on one core, best of up to {ROUNDS} runs in a process of its own; {WORKERS} workers, ticket "
            f"dispatch, a semaphore per tile; null: more than {options.limit} s; looked_at: boxes looked at to find "
            "dependencies and waits; before: the version that filtered boxes by one dimension and looked at each pair "
            "of ops"
        )
        write_cpu_record(
            options.out,
            "python benchmarks/dependencies.py",
            protocol,
            MEASURES,
            {"limit_s": options.limit, "rows": rows},
            ("numpy",),
        )


if __name__ == "__main__":
    main()
