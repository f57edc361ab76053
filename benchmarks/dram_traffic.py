"""Bytes that matmuls and FFNs read from memory under many tile orders, counted by the hardware.

    python benchmarks/dram_traffic.py benchmarks/results/traffic-h200.json
    python benchmarks/dram_traffic.py benchmarks/results/traffic-bounds-h200.json --case bounds

Needs a Hopper GPU and ``ncu``. Each case is one launch of the megakernel with cold caches, one block per SM. ``--case``
takes ``matmul``, an FFN, a problem of ``bounds_cases.py``, or ``bounds`` for all of these problems; it may be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path

from bounds_cases import BOUNDS_CASES, BoundsCase
from script import format_command, make_parser

import interlace as il
from interlace.bench.compile import compile_launches
from interlace.bench.counters import count_launches
from interlace.bench.profile import METRICS
from interlace.bench.record import write_record
from interlace.cli.names import ORDERS
from interlace.executors.megakernel import MegakernelExecutor
from interlace.policies.splits import Split, SplitK, SplitTail

MEASURES = (
    "csrc",
    "executors/megakernel.py",
    "megakernel/table.py",
    "kernels/abi",
    "kernels/conv2d",
    "kernels/matmul",
    "kernels/primitives",
    "kernels/softmax",
    "megakernel",
    "planner/build.py",
    "planner/waits.py",
    "policies",
)
WORKERS = 132
GEMM_ORDERS = (*(f"grouped:{n}" for n in (1, 2, 4, 8, 16, 32)), "serpentine", "hilbert")
GEMMS = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (8192, 28672, 4096),
    (2048, 16384, 16384),
    (16384, 2048, 8192),
)
_WIDE, _TALL, _SQUARE = (il.MatmulTile(m, n, 64, num_warps=8) for m, n in ((128, 256), (256, 128), (128, 128)))


@dataclass(frozen=True)
class FFNPlan:
    """Tiles of both matmuls of an FFN, rows in a group (0 for row-major), and splits by op."""

    up: il.MatmulTile = _WIDE
    down: il.MatmulTile = _WIDE
    group: int = 8
    splits: Mapping[str, Split] = field(default_factory=dict)


def _cut_finely(chunk: int, **splits: Split) -> FFNPlan:
    """Return a plan of few tokens."""
    return FFNPlan(il.MatmulTile(16, 64, chunk), il.MatmulTile(16, 64, 256), 0, splits)


#: Plans of FFNs by name and tokens: the defaults of 2026-11-22, so that a count and a later prediction are of one plan.
FFN_PLANS = {
    ("relu", 16): _cut_finely(256, down=SplitK(4)),
    ("relu", 256): FFNPlan(_TALL, _TALL, 0, {"down": SplitK(4)}),
    ("relu", 512): FFNPlan(group=4, splits={"down": SplitTail(64, 112)}),
    ("relu", 1024): FFNPlan(group=4, splits={"up": SplitTail(52, 32)}),
    ("relu", 2048): FFNPlan(),
    ("relu", 4096): FFNPlan(),
    ("relu", 8192): FFNPlan(splits={"up": SplitTail(20, 32)}),
    ("swiglu", 16): _cut_finely(128, down=SplitK(4)),
    ("swiglu", 1024): FFNPlan(_SQUARE, group=4),
    ("swiglu", 4096): FFNPlan(_SQUARE),
    ("gelu", 16): _cut_finely(256, up=SplitK(3), down=SplitK(2)),
    ("gelu", 512): FFNPlan(group=4, splits={"up": SplitTail(96, 144), "down": SplitTail(60, 48)}),
    ("gelu", 2048): FFNPlan(),
}


@dataclass(frozen=True)
class Case:
    """One launch: a matmul of (m, n, k) with a tile and an order, or an FFN of the benchmark with an order or none."""

    name: str
    m: int
    n: int = 0
    k: int = 0
    tile: tuple[int, int, int] = (128, 128, 64)
    order: str = ""

    def plan(self) -> il.Plan:
        """Its plan."""
        if self.name == "matmul":
            graph = il.workloads.one_matmul(self.m, self.n, self.k, tile=il.MatmulTile(*self.tile, 4, 8))
            return il.build(graph, il.Schedule(WORKERS, order=ORDERS.parse(self.order)))
        own = FFN_PLANS[self.name, self.m]
        shape = il.workloads.FeedForward.from_fields({"m": self.m}, True, self.name).shape
        graph = il.workloads.ffn(self.m, shape, il.bf16, own.up, own.down)
        if self.order:
            return il.build(graph, il.Schedule(WORKERS, order=ORDERS.parse(self.order)))
        order = ORDERS.parse(f"grouped:{own.group}" if own.group else "row")
        return il.build(graph, il.Schedule(WORKERS, order=order, split=own.splits))

    @property
    def binary(self) -> tuple[object, ...]:
        """Key that cases of one compiled launch share."""
        return self.name, self.m, self.n, self.k, self.tile

    @property
    def facts(self) -> dict[str, object]:
        """Facts that the record names."""
        tile = "x".join(map(str, self.tile)) if self.name == "matmul" else ""
        return {"name": self.name, "m": self.m, "n": self.n, "k": self.k, "tile": tile, "order": self.order}


def cases() -> list[Case]:
    """In the order in which they run."""
    listed = [Case("matmul", *gemm, order=order) for gemm in GEMMS for order in GEMM_ORDERS]
    listed += [Case("matmul", 8192, 8192, 8192, (128, 256, 64), order) for order in GEMM_ORDERS]
    for name, m in FFN_PLANS:
        listed += [Case(name, m)]
        if m >= 1024:
            listed += [Case(name, m, order=f"grouped:{group}") for group in (1, 2, 4, 8, 16)]
    return listed


def select_cases(names: Sequence[str]) -> list[Case] | list[BoundsCase]:
    """Return the cases of some names: those of the picture of bounds, or matmuls and FFNs; all of the latter for none.

    Raises:
        SystemExit: a name is unknown, or names of both kinds are mixed.
    """
    if not names:
        return cases()
    of_bounds = {case.name for case in BOUNDS_CASES}
    known = {case.name for case in cases()}
    if set(names) <= of_bounds | {"bounds"}:
        return [case for case in BOUNDS_CASES if case.name in names or "bounds" in names]
    if set(names) <= known:
        return [case for case in cases() if case.name in names]
    listed = f"{', '.join(sorted(known))}; or of bounds, {', '.join(sorted(of_bounds))}"
    raise SystemExit(f"--case {' '.join(names)}: use names of one record: {listed}")


def executor(case: Case | BoundsCase, device: str = "cuda") -> il.MegakernelExecutor:
    """Ready to run."""
    return il.MegakernelExecutor(case.plan(), il.RunOptions(device))


def launch(names: Sequence[str]) -> None:
    """Launch each case once, for the profiler."""
    import torch  # the cases are also read where there is none

    memory = torch.randn(1 << 29, device="cuda").bfloat16()
    for case in select_cases(names):
        run = executor(case)
        graph, tensors, at = run.plan.graph, {}, 0
        for name in (*graph.inputs, *graph.outputs):
            shape = graph.tensor(name).shape
            size = prod(shape)
            tensors[name] = memory[at : at + size].view(shape) if name in graph.inputs else run.allocate_tensor(name)
            at += size
        run.run(tensors)
        run.synchronize()


def main(path: str, names: Sequence[str]) -> None:
    """Count, print and record."""
    chosen = select_cases(names)
    unique = {case.binary: case for case in chosen}
    for _ in compile_launches([partial(executor, case) for case in unique.values()]):
        pass
    rows = []
    options = [text for name in names for text in ("--case", name)]
    command = [sys.executable, __file__, "--launch", *options]
    counted = count_launches(command, MegakernelExecutor.kernel, METRICS)
    for case, counts in zip(chosen, counted, strict=True):
        rows.append({**case.facts, **counts})
        moved = f"{counts['dram_read_bytes'] / 1e6:.1f} MB read, {counts['dram_write_bytes'] / 1e6:.1f} MB written"
        print(*case.facts.values(), f"{moved}, {counts['l2_hit_pct']:.1f} % hits, {counts['ns'] / 1e3:.1f} us")
    protocol = "ncu, cold caches, clocks as they are, one launch each"
    write_record(Path(path), format_command(Path(path), *options), protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("record", nargs="?")
    parser.add_argument("--case", action="append", default=[], help="name of cases to count")
    parser.add_argument("--launch", action="store_true", help="launch each case once, as the profiler's child does")
    given = parser.parse_args()
    if given.launch:
        launch(given.case)
    elif given.record:
        main(given.record, given.case)
    else:
        parser.error("name a record to write")
