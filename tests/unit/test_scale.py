"""Plans of the size of real models take work and memory of their tiles: counted, as a machine's times are its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from interlace.core.errors import IntraOpRaceError
from interlace.graph import inverse, ragged
from interlace.graph.access import ALL, Access, Affine, Span, axes, constant_span
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan import awaited, coverage, posts
from interlace.plan import verify as prove
from interlace.plan.plan import Dispatch
from interlace.plan.verify import Proof, verify
from interlace.planner import waits
from interlace.planner.build import build
from interlace.policies.interleavings import RowPanels
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
    ConsumerSync,
    KernelSync,
    NoSync,
    RowSync,
    StridedSync,
    TileSync,
)

from .graphs import chain, pointwise, program, two_matmuls


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[Graph, Schedule], tuple[int, Proof]]:
    """Builds and proves a plan, and counts what that looks at: boxes, and numbers listed from ranges."""
    listed = 0

    def count_ranges(first: np.ndarray, sizes: np.ndarray, stride: np.ndarray | int = 1) -> np.ndarray:
        nonlocal listed
        listed += int(sizes.sum())
        return ranges(first, sizes, stride)

    ranges = ragged.expand_ranges
    for module in (ragged, inverse, posts, waits, awaited, coverage):
        monkeypatch.setattr(module, "expand_ranges", count_ranges)

    made: list[Dependencies] = []

    def record_dependencies(graph: Graph) -> Dependencies:
        made.append(Dependencies(graph))
        return made[-1]

    monkeypatch.setattr(prove, "Dependencies", record_dependencies)

    def count(graph: Graph, schedule: Schedule) -> tuple[int, Proof]:
        before = listed
        made[:] = [Dependencies(graph)]
        proof = verify(build(graph, schedule, made[0]))
        return sum(dependencies.examined_boxes for dependencies in made) + listed - before, proof

    return count


def ffn() -> Graph:
    """A feed-forward layer of M = 8192, H = 4096, F = 14336 in tiles of 64 x 128."""
    return two_matmuls(8192, (4096, 14336, 4096), up=(64, 128), down=(64, 128), block=64)


@pytest.mark.parametrize(
    ("schedule", "waits"),
    [
        (Schedule(132), 4096),
        (Schedule(132, policy=RowSync()), 4096),
        (Schedule(132, policy=ConsumerSync()), 4096),
        (Schedule(132, Dispatch.STATIC, policy=BatchedRowSync(2), interleaving=RowPanels(2)), 4096),
        (Schedule(132, policy=RowSync(), split={"down": SplitK(4)}), 4 * 4096),
    ],
    ids=["tiles", "rows", "consumers", "static panels", "split-K"],
)
def test_ffn_of_18432_tiles_is_planned_and_proved(schedule: Schedule, waits: int, work) -> None:
    graph = ffn()
    looked_at, proof = work(graph, schedule)
    assert sum(op.tiles for op in graph.ops) == 18_432
    # Each of the 128 x 32 tiles of down reads a row of 112 tiles of up.
    assert Dependencies(graph).count_edges() == proof.edges == proof.edges_by_wait == 4096 * 112
    assert len(proof.plan.waits) == waits
    assert proof.longest_chain == 2
    assert looked_at < 10 * 18_432


def test_ffn_with_a_wait_for_every_chunk_looks_at_each_dependency_a_few_times(work) -> None:
    looked_at, proof = work(ffn(), Schedule(132, chunk_waits=True))
    assert len(proof.plan.waits) == 4096 * 112
    assert proof.edges == proof.edges_by_wait == 4096 * 112
    assert looked_at < 10 * 4096 * 112


#: Of many tiles and of many ops.
SIZES = [(4, 25_000), (200, 500)]
KINDS = {
    "ticket": Schedule(132),
    "static": Schedule(132, Dispatch.STATIC),
    "panels": Schedule(132, interleaving=RowPanels(4)),
}


@pytest.mark.parametrize(
    ("ops", "tiles", "schedule"),
    [
        pytest.param(*size, chosen, id=f"{kind}-{size[0]}-{size[1]}", marks=pytest.mark.thorough if rare else ())
        for size in SIZES
        for kind, chosen in KINDS.items()
        for rare in [size == SIZES[1] and kind != "panels"]
    ],
)
def test_graph_of_100_000_items_is_proved(ops: int, tiles: int, schedule: Schedule, work) -> None:
    looked_at, proof = work(chain(ops, tiles), schedule)
    assert len(proof.plan.items) == 100_000
    assert proof.edges == proof.edges_by_wait == (ops - 1) * tiles
    assert proof.longest_chain == ops
    assert looked_at < 30 * 100_000


# ---------------------------------------------------------------- growth


def grid(*extents: int) -> Graph:
    """One to one: ``b`` copies, tile by tile, what ``a`` copied."""
    shape = tuple(2 * n for n in extents)
    own = tuple(2 for _ in extents)
    names = {"x": shape, "y": shape, "z": shape}
    return program(names, pointwise("a", "x", "y", shape, own), pointwise("b", "y", "z", shape, own))


def update(n: int, rows: Span, read: Span | None = None, tensor: str = "h") -> Op:
    """Op ``n`` updates rows of a tensor of eight columns in place, in two tiles."""
    _, j = axes(2)
    reads = (Access("in", tensor, (read or rows, j.block(4))),)
    return Op(f"op{n}", "add", (1, 2), reads, (Access("out", tensor, (rows, j.block(4))),))


def parts(ops: int) -> Graph:
    """Each op updates one of eight parts in place."""
    return program(
        {"h": (32, 8)}, *(update(n, constant_span(n % 8 * 4, n % 8 * 4 + 4)) for n in range(ops)), inputs=("h",)
    )


def windows(ops: int) -> Graph:
    """Each op updates half of a tensor in place, one row further on than the op before."""
    rows = (update(n, constant_span(n, n + ops)) for n in range(ops))
    return program({"h": (2 * ops, 8)}, *rows, inputs=("h",))


def cache(ops: int) -> Graph:
    """Rows are appended one by one, and all is rescaled after each: a cache of keys."""
    steps = [update(n, constant_span(n // 2, n // 2 + 1) if n % 2 == 0 else ALL) for n in range(ops)]
    return program({"h": (ops // 2, 8)}, *steps, inputs=("h",))


def attention(ops: int) -> Graph:
    """Rows are appended one by one, and each is followed by a read of all rows so far."""
    _, j = axes(2)
    steps = []
    for n in range(ops // 2):
        row = constant_span(n, n + 1)
        new = (Access("in", "x", (row, j.block(4))),), (Access("out", "cache", (row, j.block(4))),)
        past = (Access("in", "cache", (constant_span(0, n + 1), j.block(4))),), (Access("out", "y", (row, j.block(4))),)
        steps += [Op(f"append{n}", "copy", (1, 2), *new), Op(f"attend{n}", "sum", (1, 2), *past)]
    return program({"x": (ops // 2, 8), "cache": (ops // 2, 8), "y": (ops // 2, 8)}, *steps)


def causal(tiles: int) -> Graph:
    """Tile i reads what tiles 0 to i wrote."""
    (i,) = axes(1)
    read = Access("in", "k", (Span(Affine(), i * 2 + 2),))
    attend = Op("attend", "sum", (tiles,), (read,), (Access("out", "y", (i.block(2),)),))
    shape = (2 * tiles,)
    return program({"x": shape, "k": shape, "y": shape}, pointwise("keys", "x", "k", shape, (2,)), attend)


def causal_heads(tiles: int) -> Graph:
    """The same for four heads, which come last in the grid of keys and first in that of attention."""
    i, h = axes(2)
    shape = (2 * tiles, 4)
    own = (i.block(2), h.block(1))
    keys = Op("keys", "copy", (tiles, 4), (Access("in", "x", own),), (Access("out", "k", own),))
    head, row = axes(2)
    read = Access("in", "k", (Span(Affine(), row * 2 + 2), head.block(1)))
    attend = Op("attend", "sum", (4, tiles), (read,), (Access("out", "y", (row.block(2), head.block(1))),))
    return program({"x": shape, "k": shape, "y": shape}, keys, attend)


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (grid(1024), grid(4096)),
        (grid(32, 32), grid(64, 64)),
        (grid(8, 8, 16), grid(16, 16, 16)),
        (parts(32), parts(128)),
        (windows(32), windows(128)),
        (cache(32), cache(128)),
        (causal(256), causal(1024)),
        (causal_heads(64), causal_heads(256)),
    ],
    ids=["grid", "2-D grid", "3-D grid", "parts", "windows", "cache", "causal", "causal heads"],
)
def test_work_grows_with_tiles_and_ops(small: Graph, large: Graph, work) -> None:
    """Four times as much of a graph is about four times the work: a product of n log n, never of n * n."""
    assert work(large, Schedule(132))[0] <= 5.2 * work(small, Schedule(132))[0]


@pytest.mark.parametrize(("make", "tiles"), [(windows, 32), (causal, 256)])
def test_work_by_consumers_grows_with_tiles_and_ops(make: Callable[[int], Graph], tiles: int, work) -> None:
    by_consumers = Schedule(132, policy=ConsumerSync())
    assert work(make(4 * tiles), by_consumers)[0] <= 5.2 * work(make(tiles), by_consumers)[0]


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(132, policy=RowSync()),
        Schedule(132, policy=BatchedRowSync(3)),
        Schedule(132, policy=StridedSync(2)),
        Schedule(132, policy=ColumnSync()),
        Schedule(132, policy=KernelSync()),
        Schedule(132, policy=ConsumerSync()),
        Schedule(132, Dispatch.STATIC, policy=TileSync()),
        Schedule(132, interleaving=RowPanels(8)),
        Schedule(1, policy=NoSync()),
        Schedule(1, Dispatch.STATIC, policy={"attend": NoSync()}, interleaving=RowPanels(8)),
    ],
    ids=[
        *("rows", "batched rows", "strided", "columns", "kernel", "consumers", "static", "panels"),
        *("one worker", "one static worker"),
    ],
)
def test_causal_attention_is_dealt_with_as_ranges_whatever_the_plan(schedule: Schedule, work) -> None:
    for make, tiles in ((causal, 512), (causal_heads, 256)):
        (large, _), (small, proof) = work(make(4 * tiles), schedule), work(make(tiles), schedule)
        assert large <= 5.2 * small
        assert proof.edges == (1 if make is causal else 4) * tiles * (tiles + 1) // 2


def test_work_on_a_cache_that_is_read_whole_grows_with_its_dependencies(work) -> None:
    """Step n depends on n rows, so that n steps have n * n dependencies: each costs less, not more."""
    (small, first), (large, second) = (work(attention(ops), Schedule(132)) for ops in (32, 128))
    assert (first.edges, second.edges) == (16 * 17, 64 * 65)
    assert large / second.edges <= small / first.edges


def test_causal_plan_takes_memory_of_its_tiles() -> None:
    def peak(tiles: int) -> int:
        graph = causal(tiles)
        tracemalloc.start()
        try:
            verify(build(graph, Schedule(132)))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8192) < 6 * peak(2048)


# ---------------------------------------------------------------- all to all


def all_to_all(n: int, same: bool = False) -> Graph:
    """Each of n tiles reads all n tiles of one tensor and its own tile of another, or of the same one."""
    (i,) = axes(1)
    own = (i.block(1),)
    reads = Access("p", "h", (ALL,)), Access("q", "h" if same else "g", own)
    return program(
        {"x": (n,), "h": (n,), "g": (n,), "y": (n,)},
        pointwise("make_h", "x", "h", (n,), (1,)),
        pointwise("make_g", "x", "g", (n,), (1,)),
        Op("use", "use", (n,), reads, (Access("out", "y", own),)),
    )


@pytest.mark.parametrize(
    ("schedule", "by_wait"),
    [
        (Schedule(132), True),
        pytest.param(Schedule(132, Dispatch.STATIC), True, marks=pytest.mark.thorough),
        (Schedule(132, policy={"make_h": BatchedRowSync(3)}), True),
        (Schedule(1, policy=NoSync()), False),
    ],
    ids=["ticket", "static", "ragged batches", "one worker"],
)
@pytest.mark.parametrize(
    "same", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["two tensors", "one tensor"]
)
def test_reads_of_all_tiles_by_all_tiles_take_memory_of_the_tiles(
    schedule: Schedule, by_wait: bool, same: bool
) -> None:
    n = 20_000
    graph = all_to_all(n, same)
    tracemalloc.start()
    try:
        proof = verify(build(graph, schedule))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert proof.edges == n * n + n
    assert proof.edges_by_wait == by_wait * proof.edges
    assert peak < 200 << 20  # one number per dependency would be 3 GB


def test_race_of_all_tiles_with_all_is_found_without_listing_it() -> None:
    n = 20_000
    op = Op("fill", "fill", (n,), (), (Access("out", "h", (ALL,)),))
    tracemalloc.start()
    try:
        with pytest.raises(IntraOpRaceError, match=r"tile \(1\) writes h\[0:8\], which op 'fill', tile \(0\)"):
            Dependencies(program({"h": (8,)}, op))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20
