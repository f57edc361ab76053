"""Ranges of semaphores that runs of tiles post, and ranges that are awaited, against sets of semaphores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.graph import ragged
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.inverse import LAYOUTS, TileRuns
from interlace.graph.op import Op
from interlace.plan.awaited import AwaitedRanges
from interlace.plan.posts import PostedRanges, PostIndex
from interlace.policies.sync import BatchedRowSync, ColumnSync, KernelSync, NoSync, RowSync, StridedSync, TileSync

from ..draws import EXAMPLES
from .graphs import ScatteredSync, column, program

POLICIES = (
    TileSync(),
    RowSync(),
    ColumnSync(),
    BatchedRowSync(2),
    StridedSync(2),
    StridedSync(3),
    KernelSync(),
    NoSync(),
    ScatteredSync(4, 0),
    ScatteredSync(9, 1),
)


def grids(*shapes: tuple[int, ...]) -> Graph:
    """Ops of these grids that read and write nothing."""
    return program({"x": (1,)}, *(Op(f"op{n}", "any", grid, (), ()) for n, grid in enumerate(shapes)))


def posts_of(graph: Graph, policies: tuple[object, ...]) -> np.ndarray:
    """Semaphore of every tile; each op has its own, unless its policy is drawn as shared."""
    first, columns = 0, []
    for op, policy in zip(graph.ops, policies, strict=True):
        post = policy.assign_semaphores(op.compute_coords(), op.grid)  # type: ignore[attr-defined]
        columns.append(np.where(post < 0, -1, post + first))
        first += int(post.max()) + 1
    return np.concatenate(columns).astype(np.int64)


def run(layout: int, first: int, count: int) -> TileRuns:
    return TileRuns(column(0), column(0), column(layout), column(first), column(count))


def list_ranges(posted: PostedRanges) -> list[tuple[int, int, int]]:
    return list(zip(posted.first.tolist(), posted.count.tolist(), posted.stride.tolist(), strict=True))


@pytest.mark.parametrize(
    ("policy", "first", "count", "expected"),
    [
        (TileSync(), 2, 7, [(2, 7, 1)]),
        (RowSync(), 2, 7, [(0, 3, 1)]),
        (ColumnSync(), 0, 12, [(0, 4, 1)]),
        (ColumnSync(), 2, 7, [(0, 4, 1)]),
        (ColumnSync(), 2, 4, [(2, 2, 1), (0, 2, 1)]),
        (KernelSync(), 2, 7, [(0, 1, 1)]),
        (NoSync(), 2, 7, [(-1, 1, 1)]),
        (StridedSync(2), 1, 2, [(1, 1, 1), (0, 1, 1)]),
        (StridedSync(2), 2, 4, [(0, 4, 1)]),
    ],
)
def test_runs_post_few_ranges(policy: TileSync, first: int, count: int, expected: list[tuple[int, int, int]]) -> None:
    graph = grids((3, 4))
    posted = PostIndex(Dependencies(graph), posts_of(graph, (policy,))).find_ranges(run(0, first, count), 1)
    assert list_ranges(posted) == expected
    assert int(posted.tiles.count.sum()) == count


def test_a_column_of_tiles_posts_one_range_in_the_layout_of_columns() -> None:
    graph = grids((3, 4))
    down = LAYOUTS.index((1, 0, 2))
    posted = PostIndex(Dependencies(graph), posts_of(graph, (TileSync(),))).find_ranges(run(down, 3, 3), 1)
    assert list_ranges(posted) == [(1, 3, 4)]


@EXAMPLES
@given(st.data())
def test_ranges_hold_what_the_tiles_post_and_nothing_else(data: st.DataObject) -> None:
    shape = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
    graph = grids(*data.draw(st.lists(shape, min_size=1, max_size=3)))
    dependencies = Dependencies(graph)
    of_tile = posts_of(graph, tuple(data.draw(st.sampled_from(POLICIES)) for _ in graph.ops))
    posts = PostIndex(dependencies, of_tile)
    rows = []
    for _ in range(data.draw(st.integers(1, 6))):
        op = data.draw(st.integers(0, len(graph.ops) - 1))
        begin, end = dependencies.base[op : op + 2].tolist()
        first = data.draw(st.integers(begin, end - 1))
        rows.append((data.draw(st.integers(0, len(LAYOUTS) - 1)), first, data.draw(st.integers(1, end - first))))
    layout, first, count = (np.array(values, np.int64) for values in zip(*rows, strict=True))
    runs = TileRuns(np.arange(len(rows)), np.zeros_like(layout), layout, first, count)
    posted = posts.find_ranges(runs, len(rows))
    threshold = np.bincount(of_tile[of_tile >= 0], minlength=1)
    for row in range(len(rows)):
        own = posted.take(column(row))
        tiles = dependencies.find_first_tiles(runs.take(column(row)).split_into_singles())
        assert sorted(dependencies.find_first_tiles(own.tiles.split_into_singles()).tolist()) == sorted(tiles.tolist())
        for n, (low, number, stride) in enumerate(list_ranges(own)):
            mine = dependencies.find_first_tiles(own.tiles.take(column(n)).split_into_singles())
            semaphores = {low + i * stride for i in range(number)}
            assert {int(s) for s in of_tile[mine]} == semaphores
            assert low < 0 or len({int(threshold[s]) for s in semaphores}) == 1


def test_one_range_holds_another_exactly_if_it_has_all_of_its_numbers() -> None:
    """All pairs of small ranges; each that is awaited is a row of its own."""
    ranges = [(a, n, s) for a in range(6) for n in range(1, 5) for s in range(1, 5) if n > 1 or s == 1]
    sets = [{a + i * s for i in range(n)} for a, n, s in ranges]
    low, count, step = (column(*(one[n] for one in ranges)) for n in range(3))
    rows = np.repeat(np.arange(len(ranges)), len(ranges))
    first, number, stride = (np.tile(values, len(ranges)) for values in (low, count, step))
    tiles = TileRuns(rows, rows, rows, rows, number)
    posted = PostedRanges(np.arange(len(ranges) + 1) * len(ranges), first, number, stride, tiles)
    whole = AwaitedRanges(np.arange(len(ranges) + 1), low, count, step).contains_range(rows, posted, 30)
    assert whole.tolist() == [other <= own for own in sets for other in sets]


@pytest.mark.parametrize("batch", [1, 1 << 20])
@EXAMPLES
@given(st.data())
def test_what_is_awaited_is_known_range_by_range_and_one_by_one(batch: int, data: st.DataObject) -> None:
    some = st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(1, 4))
    drawn = data.draw(st.lists(st.lists(some, max_size=4), min_size=1, max_size=3))
    ptr = ragged.compute_offsets(column(*map(len, drawn)))
    low, count, step = (column(*(r[n] for row in drawn for r in row)) for n in range(3))
    awaited = AwaitedRanges(ptr, low, count, np.where(count == 1, 1, step))
    sets = [{a + i * s for a, n, s in row for i in range(n)} for row in drawn]
    needed = data.draw(st.lists(st.tuples(st.integers(0, len(drawn) - 1), some), min_size=1, max_size=8))
    needed.sort()
    row = column(*(n for n, _ in needed))
    first, number, stride = (column(*(r[n] for _, r in needed)) for n in range(3))
    tiles = TileRuns(row, row, row, row, number)
    posted = PostedRanges(ragged.compute_offsets(np.bincount(row, minlength=len(drawn))), first, number, stride, tiles)
    semaphores = 40
    whole = awaited.contains_range(row, posted, semaphores)
    for at, (n, (a, size, s)) in enumerate(needed):
        wanted = {a + i * s for i in range(size)}
        assert not whole[at] or wanted <= sets[n]
        if (a, size, s) in drawn[n] and sum(other[0] <= a for other in drawn[n]) == 1:
            assert whole[at]
    with pytest.MonkeyPatch.context() as patch:
        for n, own in enumerate(sets):
            patch.setattr(ragged, "BATCH_ENTRIES", batch)
            asked = np.arange(-1, semaphores)
            alone = awaited.take(column(n))
            assert alone.contains(np.zeros_like(asked), asked, semaphores).tolist() == [int(s) in own for s in asked]
