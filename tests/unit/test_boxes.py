"""The index of boxes, the merging of boxes and access maps read backwards, against plain loops over elements."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.graph import ragged
from interlace.graph.access import ALL, Access, Affine, Span, axes
from interlace.graph.boxes import BoxIndex, merge_boxes
from interlace.graph.inverse import LAYOUTS, InverseAccess
from interlace.graph.op import Op

from ..draws import EXAMPLES
from .graphs import column

Boxes = tuple[np.ndarray, np.ndarray]


@st.composite
def box_lists(draw: st.DrawFn, rank: int, at_most: int = 12) -> Boxes:
    """Boxes, empty ones included."""
    corner = st.lists(st.integers(0, 7), min_size=rank, max_size=rank)
    drawn = draw(st.lists(st.tuples(corner, corner), min_size=1, max_size=at_most))
    lo, hi = (np.array(side, np.int64).reshape(-1, rank) for side in zip(*drawn, strict=True))
    return lo, hi


def cells(lo: np.ndarray, hi: np.ndarray) -> set[tuple[int, ...]]:
    """The elements of one box."""
    return set(product(*(range(a, b) for a, b in zip(lo.tolist(), hi.tolist(), strict=True))))


# ---------------------------------------------------------------- the index


@pytest.mark.parametrize("batch", [1, 20, 1 << 20])
@EXAMPLES
@given(st.integers(1, 3).flatmap(lambda rank: st.tuples(box_lists(rank), box_lists(rank))))
def test_index_finds_exactly_the_boxes_that_share_an_element(batch: int, lists: tuple[Boxes, Boxes]) -> None:
    (lo, hi), (query_lo, query_hi) = lists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BATCH_ENTRIES", batch)
        found = [
            groups[q].tolist()
            for start, groups in BoxIndex(lo, hi).iter_intersections(query_lo, query_hi)
            for q in range(len(groups))
        ]
    assert found == [
        [n for n in range(len(lo)) if cells(lo[n], hi[n]) & cells(query_lo[q], query_hi[q])]
        for q in range(len(query_lo))
    ]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_index_looks_at_few_boxes_for_each_box_of_a_grid(rank: int) -> None:
    def per_box(extent: int) -> float:
        lo = np.stack(np.unravel_index(np.arange(extent**rank), (extent,) * rank), axis=1)
        index = BoxIndex(lo, lo + 1)
        assert all((groups.sizes == 1).all() for _, groups in index.iter_intersections(lo, lo + 1))
        return index.examined_boxes / len(lo)

    small, large = {1: (256, 1024), 2: (16, 32), 3: (6, 10)}[rank]
    assert per_box(large) <= per_box(small) + 8  # two levels more of a tree, not four times as many boxes


# ---------------------------------------------------------------- merging


@EXAMPLES
@given(st.integers(1, 3).flatmap(box_lists))
def test_merged_boxes_hold_the_same_elements(boxes: Boxes) -> None:
    lo, hi = boxes
    merged_lo, merged_hi = merge_boxes(lo, hi)
    assert set().union(*map(cells, merged_lo, merged_hi)) == set().union(*map(cells, lo, hi))
    assert len(merged_lo) <= len(lo)
    assert (merged_lo < merged_hi).all()


def test_disjoint_boxes_stay_disjoint_and_a_grid_becomes_one_box() -> None:
    lo = np.stack(np.unravel_index(np.arange(60), (3, 4, 5)), axis=1) * column(2, 3, 1)
    one_lo, one_hi = merge_boxes(lo, lo + column(2, 3, 1))
    assert (one_lo.tolist(), one_hi.tolist()) == ([[0, 0, 0]], [[6, 12, 5]])
    holes_lo, holes_hi = merge_boxes(lo, lo + column(2, 2, 1))  # a gap in the second dimension
    assert (holes_lo.tolist(), holes_hi.tolist()) == (
        [[0, 3 * n, 0] for n in range(4)],
        [[6, 3 * n + 2, 5] for n in range(4)],
    )


# ---------------------------------------------------------------- access maps backwards


bounds = st.builds(
    Affine,
    st.integers(-6, 12),
    st.lists(st.integers(-3, 4), max_size=3).map(tuple),
)


@st.composite
def spans(draw: st.DrawFn, extents: int) -> Span:
    """Blocks, halos, what mixes coordinates, what runs backwards, what is often empty or outside."""
    t = draw(st.sampled_from(axes(extents)))
    lo, hi = (Affine(b.const, b.tile[:extents]) for b in (draw(bounds), draw(bounds)))
    block = t.block(draw(st.integers(1, 3)), draw(st.integers(0, 1)))
    width = draw(st.integers(0, 4))
    return draw(st.sampled_from((ALL, block, Span(lo, lo + width), Span(Affine(), hi), Span(lo, hi))))


@pytest.mark.parametrize("batch", [1, 50, 1 << 20])
@EXAMPLES
@given(st.data())
def test_tiles_that_touch_a_box_are_found_from_the_maps(batch: int, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    accesses, base = [], 0
    for n in range(data.draw(st.integers(1, 2))):
        grid = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        access = Access("x", "x", tuple(data.draw(spans(len(grid))) for _ in shape))
        accesses.append((Op(f"op{n}", "any", grid, (access,), ()), base, access))
        base += accesses[-1][0].tiles
    touched = []
    for op, first, access in accesses:
        zero = np.zeros(op.tiles, np.int64)
        lo, hi = access.compute_bounds(shape, op.compute_coords(), zero, zero + 1)
        touched.append([(first + t, cells(lo[t], hi[t])) for t in range(op.tiles)])
    queries = data.draw(box_lists(len(shape)))
    lo, hi = (np.minimum(side, shape) for side in queries)
    source = np.array(data.draw(st.lists(st.integers(0, len(accesses) - 1), min_size=len(lo), max_size=len(lo))))
    expected = [[tile for tile, own in touched[s] if own & cells(lo[q], hi[q])] for q, s in enumerate(source.tolist())]
    inverse = InverseAccess(shape, accesses)
    pair, begin, end = inverse.find_coordinates(source, lo, hi)
    found: list[list[int]] = [[] for _ in source]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BATCH_ENTRIES", batch)
        for a, b, runs in inverse.iter_runs(source[pair], pair, len(source), begin, end):
            assert (runs.row < b - a).all()
            single = runs.split_into_singles()
            assert len(single) == runs.count.sum()
            for row, s, layout, place in zip(single.row, single.source, single.layout, single.first, strict=True):
                op, first, _ = accesses[s]
                grid = op.grid + (1,) * (3 - len(op.grid))
                order = np.arange(op.tiles).reshape(grid).transpose(LAYOUTS[layout]).reshape(-1)
                found[a + row].append(first + int(order[place - first]))
    assert [sorted(tiles) for tiles in found] == expected
    for q, s in enumerate(source.tolist()):
        for tile, own in touched[s]:
            met = inverse.intersects(column(s), column(tile), lo[q : q + 1], hi[q : q + 1])
            assert met.tolist() == [bool(own & cells(lo[q], hi[q]))]


def test_answers_are_one_run_where_tiles_are_neighbours_in_some_layout() -> None:
    i, j = axes(2)
    access = Access("x", "x", (i.block(2), j.block(3)))
    inverse = InverseAccess((12, 12), [(Op("op", "any", (6, 4), (), (access,)), 0, access)])

    def answer(rows: tuple[int, int], columns: tuple[int, int]) -> list[tuple[int, int, int]]:
        lo, hi = (np.array([[rows[side], columns[side]]]) for side in (0, 1))
        pair, begin, end = inverse.find_coordinates(column(0), lo, hi)
        ((_, _, runs),) = inverse.iter_runs(pair, pair, 1, begin, end)
        return list(zip(runs.layout.tolist(), runs.first.tolist(), runs.count.tolist(), strict=True))

    down = LAYOUTS.index((1, 0, 2))
    assert answer((0, 12), (0, 12)) == [(0, 0, 24)]
    assert answer((3, 7), (0, 12)) == [(0, 4, 12)]
    assert answer((3, 7), (4, 5)) == [(down, 7, 3)]  # the second column, tiles 1 to 3 of 6
    assert answer((3, 7), (4, 8)) == [(down, 7, 3), (down, 13, 3)]
    assert answer((3, 4), (4, 8)) == [(0, 5, 2)]


def test_only_what_a_flattened_index_leaves_is_tried() -> None:
    """Tile (h, n) of 64 x 64 writes row 64 h + n of a flat tensor: one look at a value of h each."""
    h, n = axes(2)
    access = Access("x", "x", ((h * 64 + n).block(1),))
    inverse = InverseAccess((4096,), [(Op("op", "any", (64, 64), (), (access,)), 0, access)])
    lo = np.arange(4096)[:, None]
    pair, begin, end = inverse.find_coordinates(np.zeros(4096, np.int64), lo, lo + 1)
    assert (begin[:, 0] * 64 + begin[:, 1]).tolist() == pair.tolist() == list(range(4096))
    assert (end - begin == 1).all()
    assert inverse.examined_boxes <= 3 * 4096
