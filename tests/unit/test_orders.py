"""Orders, interleavings and splits: permutations, and exact sequences for small cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import OrderError
from interlace.graph.access import ALL, Access, Affine, Span, axes
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.interleavings import (
    Abreast,
    ExplicitInterleaving,
    HalfRowPanels,
    Interleaving,
    OpAfterOp,
    OpMajorItems,
    RowPanels,
)
from interlace.policies.orders import (
    ColumnMajor,
    ExplicitOrder,
    GroupedColumnMajor,
    GroupedSerpentine,
    Hilbert,
    Morton,
    Order,
    RowMajor,
    Serpentine,
)
from interlace.policies.schedule import Schedule
from interlace.policies.splits import Split, SplitK, SplitTail, StreamK, WholeTiles
from interlace.policies.sync import KernelSync

from ..draws import EXAMPLES
from .graphs import SPLITS, graphs, matmul, pair, pointwise, program, schedules, two_matmuls

ORDERS = (
    RowMajor(),
    ColumnMajor(),
    GroupedColumnMajor(1),
    GroupedColumnMajor(2),
    GroupedColumnMajor(100),
    Serpentine(),
    GroupedSerpentine(1),
    GroupedSerpentine(3),
    GroupedSerpentine(100),
    Morton(),
    Hilbert(),
)
RECTANGLES = list(product(range(1, 10), repeat=2))


def positions(order: Order, grid: tuple[int, int]) -> list[list[int]]:
    """When each tile runs, as the rows of the grid."""
    when = np.empty(grid[0] * grid[1], np.int64)
    when[order.compute_permutation(grid)] = np.arange(len(when))
    return when.reshape(grid).tolist()


# ---------------------------------------------------------------- orders


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_order_runs_every_tile_once(order: Order) -> None:
    for rows, columns in RECTANGLES:
        assert sorted(order.compute_permutation((rows, columns)).tolist()) == list(range(rows * columns))
    assert sorted(order.compute_permutation((7,)).tolist()) == list(range(7))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_grid_of_three_dimensions_is_taken_as_all_but_the_last_by_the_last(order: Order) -> None:
    assert order.compute_permutation((2, 3, 5)).tolist() == order.compute_permutation((6, 5)).tolist()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (RowMajor(), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        (ColumnMajor(), [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        (GroupedColumnMajor(2), [[0, 2, 4, 6], [1, 3, 5, 7], [8, 9, 10, 11]]),
        (Serpentine(), [[0, 1, 2, 3], [7, 6, 5, 4], [8, 9, 10, 11]]),
        (GroupedSerpentine(2), [[0, 3, 4, 7], [1, 2, 5, 6], [11, 10, 9, 8]]),
    ],
    ids=str,
)
def test_orders_are_those_of_the_table_in_the_module(order: Order, expected: list[list[int]]) -> None:
    assert positions(order, (3, 4)) == expected


def test_morton_interleaves_the_bits_of_row_and_column() -> None:
    assert positions(Morton(), (4, 4)) == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert positions(Morton(), (2, 3)) == [[0, 1, 4], [2, 3, 5]]
    assert positions(Morton(), (3, 2)) == [[0, 1], [2, 3], [4, 5]]


def test_morton_of_a_large_grid_sorts_by_interleaved_digits() -> None:
    def digits(tile: int) -> str:
        row, column = f"{tile // 16:04b}", f"{tile % 16:04b}"
        return "".join(r + c for r, c in zip(row, column, strict=True))

    assert Morton().compute_permutation((16, 16)).tolist() == sorted(range(256), key=digits)


def test_hilbert_of_four_by_four() -> None:
    assert positions(Hilbert(), (4, 4)) == [[0, 1, 14, 15], [3, 2, 13, 12], [4, 7, 8, 11], [5, 6, 9, 10]]


def test_hilbert_steps_to_a_neighbour_but_for_one_diagonal_when_the_longer_side_alone_is_odd() -> None:
    # An odd side cannot be halved into two even ones; beside an even side of four or more that costs one
    # diagonal step. A side of two is narrow enough to go round.
    for rows, columns in product(range(1, 25), repeat=2):
        path = Hilbert().compute_permutation((rows, columns))
        down, right = (np.abs(np.diff(c)) for c in (path // columns, path % columns))
        odd = max(rows, columns) % 2 == 1 and min(rows, columns) % 2 == 0 and min(rows, columns) >= 4
        strides = sorted(zip(down.tolist(), right.tolist(), strict=True))
        assert [s for s in strides if sum(s) != 1] == [(1, 1)] * odd, (rows, columns)
        assert path[0] == 0


def test_serpentine_steps_to_a_neighbour() -> None:
    for rows, columns in RECTANGLES:
        path = Serpentine().compute_permutation((rows, columns))
        steps = np.abs(np.diff(path // columns)) + np.abs(np.diff(path % columns))
        assert (steps == 1).all()


def test_grouped_serpentine_of_one_row_is_serpentine_and_steps_along_a_row_or_a_column() -> None:
    for rows, columns in RECTANGLES:
        grid = (rows, columns)
        assert (GroupedSerpentine(1).compute_permutation(grid) == Serpentine().compute_permutation(grid)).all()
        for group in (2, 3, 5):
            path = GroupedSerpentine(group).compute_permutation(grid)
            row, column = path // columns, path % columns
            assert ((np.diff(row) == 0) | (np.diff(column) == 0)).all()
            within = np.diff(row // group) == 0
            assert (np.abs(np.diff(row)) + np.abs(np.diff(column)) == 1)[within].all()


def test_explicit_order_is_taken_as_given() -> None:
    assert ExplicitOrder((2, 0, 3, 1)).compute_permutation((2, 2)).tolist() == [2, 0, 3, 1]
    assert positions(ExplicitOrder((2, 0, 3, 1)), (2, 2)) == [[1, 3], [0, 2]]


@pytest.mark.parametrize(
    ("tiles", "expected"),
    [
        ((0, 1, 2, 4), r"order names 4, but grid \(2, 2\) has entries 0\.\.3"),
        ((0, 1, 2, -1), r"order names -1, but grid \(2, 2\) has entries 0\.\.3"),
        ((0, 1, 1, 3), r"order for grid \(2, 2\) lists entry 1 2 times; list each of 4 exactly once"),
        ((0, 1, 2), r"order for grid \(2, 2\) lists entry 3 0 times; list each of 4 exactly once"),
        ((0, 1, 2, 3, 3), r"order for grid \(2, 2\) lists entry 3 2 times; list each of 4 exactly once"),
        ((), r"order for grid \(2, 2\) lists entry 0 0 times; list each of 4 exactly once"),
    ],
)
def test_explicit_order_that_is_no_permutation_is_refused(tiles: tuple[int, ...], expected: str) -> None:
    with pytest.raises(OrderError, match=expected):
        ExplicitOrder(tiles).compute_permutation((2, 2))


@pytest.mark.parametrize("order", [GroupedColumnMajor, GroupedSerpentine])
def test_groups_of_no_rows_are_refused(order: type[GroupedColumnMajor] | type[GroupedSerpentine]) -> None:
    with pytest.raises(OrderError, match=f"{order.__name__} rows is 0; use a positive number"):
        order(0)


def test_users_order_is_a_rank_and_is_checked() -> None:
    class Backwards(Order):
        def rank(self, row, column, rows, columns):
            return -row, -column

    class Stuck(Order):
        def rank(self, row, column, rows, columns):
            return (row,)

        def compute_permutation(self, grid):
            return np.zeros(grid[0] * grid[1], np.int64)

    class Short(Order):
        def rank(self, row, column, rows, columns):
            return row, column[:1]

    graph = two_matmuls()
    with pytest.raises(OrderError, match="rank of Short must give a tuple of keys, each with one entry per tile"):
        Short().compute_permutation((2, 3))
    assert Backwards().compute_permutation((2, 3)).tolist() == [5, 4, 3, 2, 1, 0]
    with pytest.raises(OrderError, match=r"order for op 'up', grid \(4, 4\) lists entry 0 16 times"):
        build(graph, Schedule(2, order=Stuck()))


# ---------------------------------------------------------------- interleavings


def feed(columns: int = 2, rows: int = 2) -> Graph:
    """``d`` needs ``u`` row by row; both have ``rows`` x ``columns`` tiles, d a chunk for each tile of u."""
    return two_matmuls(rows, (1, columns, columns), up=(1, 1), down=(1, 1), block=1)


def sequence(plan: Plan) -> str:
    """One word per item: u or d and the row of its tile."""
    return " ".join(
        "ud"[op] + str(tile // plan.graph.ops[op].grid[-1])
        for op, tile in zip(plan.items.op.tolist(), plan.items.tile.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("interleaving", "expected"),
    [
        (OpAfterOp(), "u0 u0 u1 u1 d0 d0 d1 d1"),
        (RowPanels(1), "u0 u0 d0 d0 u1 u1 d1 d1"),
        (RowPanels(2), "u0 u0 u1 u1 d0 d0 d1 d1"),
        (RowPanels(1, lag=1), "u0 u0 u1 u1 d0 d0 d1 d1"),
        (HalfRowPanels(), "u0 u0 d0 d0 u1 u1 d1 d1"),
    ],
    ids=str,
)
def test_interleavings_are_those_of_the_table_in_the_module(interleaving: Interleaving, expected: str) -> None:
    assert sequence(build(feed(), Schedule(2, interleaving=interleaving))) == expected


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (8, "a0 a1 a2 a3 a4 a5 b0 b1 c0"),  # all of both begin at once anyway
        (7, "a0 a1 a2 a3 a4 b0 b1 a5 c0"),
        (6, "a0 a1 a2 a3 b0 b1 a4 a5 c0"),
        (3, "a0 b0 b1 a1 a2 a3 a4 a5 c0"),
        (2, "a0 a1 a2 a3 a4 a5 b0 b1 c0"),  # the second fills all workers by itself
    ],
)
@pytest.mark.parametrize("chained", [False, True])
def test_ops_that_share_a_result_have_workers_of_their_own_unless_one_waits(
    chained: bool, workers: int, expected: str
) -> None:
    (i,) = axes(1)
    beside = Access("out", "y", (Span(i + 6, i + 7),))
    second = replace(pointwise("b", "y" if chained else "x", "y", (2,), (1,)), writes=(beside,))
    shapes = dict.fromkeys("xyz", (8,))
    graph = program(shapes, pointwise("a", "x", "y", (6,), (1,)), second, pointwise("c", "y", "z", (8,), (8,)))
    items = build(graph, Schedule(workers, Dispatch.STATIC, interleaving=Abreast(workers))).items
    found = " ".join("abc"[op] + str(tile) for op, tile in zip(items.op.tolist(), items.tile.tolist(), strict=True))
    assert found == ("a0 a1 a2 a3 a4 a5 b0 b1 c0" if chained else expected)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 5), [2, 1, 0, 4, 3, 7, 6, 5, 9, 8]),  # columns 0 to 2 of a row, then 3 and 4
        ((1, 2, 3), [4, 3, 1, 0, 5, 2]),  # the last coordinate tells the half, whatever is in between
    ],
)
def test_half_rows_are_halves_of_the_last_coordinate(shape: tuple[int, ...], expected: list[int]) -> None:
    tile = (1,) * len(shape)
    graph = program({"x": shape, "y": shape}, pointwise("u", "x", "y", shape, tile))
    backwards = np.arange(graph.ops[0].tiles)[::-1].astype(np.int64)
    none = np.zeros_like(backwards)
    parts = OpMajorItems(none, backwards, none, none + 1)
    found = HalfRowPanels().interleave(parts, Dependencies(graph), none - 1)
    assert backwards[found].tolist() == expected


def test_a_consumer_comes_after_all_tiles_that_share_the_semaphore_it_waits_for() -> None:
    plan = build(feed(), Schedule(2, policy=KernelSync(), interleaving=RowPanels(1)))
    assert sequence(plan) == "u0 u0 u1 u1 d0 d0 d1 d1"


def test_panels_lag_sends_consumers_off_groups_later() -> None:
    graph = feed(columns=1, rows=4)
    by_lag = [sequence(build(graph, Schedule(2, interleaving=RowPanels(1, lag)))) for lag in range(5)]
    assert by_lag == [
        "u0 d0 u1 d1 u2 d2 u3 d3",
        "u0 u1 d0 u2 d1 u3 d2 d3",
        "u0 u1 u2 d0 u3 d1 d2 d3",
        "u0 u1 u2 u3 d0 d1 d2 d3",
        "u0 u1 u2 u3 d0 d1 d2 d3",
    ]


def test_half_rows_start_split_consumers_after_the_first_half() -> None:
    plan = build(feed(), Schedule(2, interleaving=HalfRowPanels(), split={"down": SplitK(2)}))
    words = sequence(plan).split()
    parts = [f"{w}[{lo}:{hi}]" for w, lo, hi in zip(words, plan.items.k_lo, plan.items.k_hi, strict=True)]
    assert parts == [
        *("u0[0:1]", "d0[0:1]", "d0[0:1]", "u0[0:1]", "d0[1:2]", "d0[1:2]"),
        *("u1[0:1]", "d1[0:1]", "d1[0:1]", "u1[0:1]", "d1[1:2]", "d1[1:2]"),
    ]


def test_panels_put_a_consumer_right_after_the_last_of_its_producers() -> None:
    # Tiles of 3 rows of d need 2 or 3 tiles of 2 rows of u: rows 0..3, 3..6, 6..9, 9..12 of 12.
    graph = two_matmuls(12, (1, 1, 1), up=(2, 1), down=(3, 1), block=1)
    plan = build(graph, Schedule(2, interleaving=RowPanels(1)))
    assert sequence(plan) == "u0 u1 d0 u2 d1 u3 u4 d2 u5 d3"


def test_panels_follow_chains_of_more_than_two_ops() -> None:
    shapes = dict.fromkeys("wxyz", (3,))
    ops = [pointwise(b, a, b, (3,), (1,)) for a, b in zip("wxy", "xyz", strict=True)]
    plan = build(program(shapes, *ops), Schedule(2, interleaving=RowPanels(1)))
    assert [("xyz"[op], int(t)) for op, t in zip(plan.items.op, plan.items.tile, strict=True)] == [
        (op, t) for t in range(3) for op in "xyz"
    ]


def test_panels_start_the_consumers_of_a_split_tile_after_all_of_its_parts() -> None:
    # d reads the rows of u backwards, so its first part is complete last; e needs the whole tile of d.
    backwards = Span(Affine(4, k_hi=-1), Affine(4, k_lo=-1))
    d = Op(
        "d",
        "sum",
        (1,),
        (Access("in", "h", (backwards,)),),
        (Access("out", "s", (ALL,)),),
        Reduction(4, 1),
    )
    shapes = {"x": (4,), "h": (4,), "s": (1,), "y": (1,)}
    graph = program(shapes, pointwise("u", "x", "h", (4,), (1,)), d, pointwise("e", "s", "y", (1,), (1,)))
    plan = build(graph, Schedule(2, split={"d": SplitK(2)}, interleaving=RowPanels(1)))
    words = zip(plan.items.op.tolist(), plan.items.tile.tolist(), plan.items.k_lo.tolist(), strict=True)
    assert [f"{'ude'[op]}{tile}" + f" from {k}" * (op == 1) for op, tile, k in words] == [
        *("u0", "u1", "d0 from 2", "u2", "u3", "d0 from 0", "e0")
    ]


def test_each_op_keeps_its_own_order_inside_an_interleaving() -> None:
    plan = build(feed(columns=3, rows=1), Schedule(2, order=ExplicitOrder((2, 0, 1)), interleaving=RowPanels(1)))
    assert plan.items.tile.tolist() == [2, 0, 1, 2, 0, 1]


def test_explicit_interleaving_is_taken_as_given() -> None:
    plan = build(pair(), Schedule(2, interleaving=ExplicitInterleaving((1, 3, 0, 2))))
    assert list(zip(plan.items.op.tolist(), plan.items.tile.tolist(), strict=True)) == [
        (0, 1),
        (1, 1),
        (0, 0),
        (1, 0),
    ]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2), "order for the graph's items lists entry 3 0 times; list each of 4 exactly once"),
        ((0, 1, 2, 2), "order for the graph's items lists entry 2 2 times"),
        ((0, 1, 2, 4), r"order names 4, but the graph's items has entries 0\.\.3"),
    ],
)
def test_explicit_interleaving_that_is_no_permutation_is_refused(order: tuple[int, ...], expected: str) -> None:
    with pytest.raises(OrderError, match=expected):
        build(pair(), Schedule(2, interleaving=ExplicitInterleaving(order)))


def test_users_interleaving_that_loses_an_item_is_refused() -> None:
    class Lossy(Interleaving):
        def interleave(self, parts: OpMajorItems, dependencies: Dependencies, post: np.ndarray) -> np.ndarray:
            return np.arange(len(parts.op) - 1)

    with pytest.raises(OrderError, match="lists entry 3 0 times"):
        build(pair(), Schedule(2, interleaving=Lossy()))


@pytest.mark.parametrize(("rows", "lag"), [(0, 0), (-1, 0), (1, -1)])
def test_panels_without_rows_or_with_negative_lag_are_refused(rows: int, lag: int) -> None:
    with pytest.raises(OrderError, match=rf"Panels\({rows}, lag={lag}\); use rows >= 1 and lag >= 0"):
        RowPanels(rows, lag)


def test_an_op_goes_before_no_item_that_it_waits_for_where_three_in_a_row_share_results() -> None:
    """``c`` shares ``z`` with ``b``, after whose items the last ones of ``a`` come, and reads what these write."""
    (i,) = axes(1)
    writes = (Access("out", "y", (Span(i + 6, i + 7),)), Access("other", "z", (i.block(1),)))
    second = replace(pointwise("b", "x", "y", (2,), (1,)), writes=writes)
    third = replace(pointwise("c", "y", "z", (2,), (1,)), writes=(Access("out", "z", (Span(i + 2, i + 3),)),))
    third = replace(third, reads=(Access("in0", "y", (Span(Affine(0), Affine(6)),)),))
    graph = program({"x": (6,), "y": (8,), "z": (4,)}, pointwise("a", "x", "y", (6,), (1,)), second, third)
    plan = build(graph, Schedule(4, Dispatch.STATIC, interleaving=Abreast(4)))
    verify(plan)
    assert plan.items.op.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 2, 2]


def test_split_tiles_keep_their_parts_together() -> None:
    """Parts that reduce a tile together follow one another."""
    (i,) = axes(1)
    beside = (Access("c", "h", (i.block(2), Span(Affine(8), Affine(9)))),)
    other = replace(pointwise("o", "x", "h", (8, 1), (2, 1)), grid=(4,), reads=(), writes=beside)
    up = matmul("up", "x", "w", "h", (8, 8, 4), (2, 2), 2)
    graph = program({"x": (8, 4), "w": (4, 8), "h": (8, 9)}, up, other)
    for split, expected in ((WholeTiles(), [0] * 4 + [1] * 4 + [0] * 12), (SplitK(2), [0] * 32 + [1] * 4)):
        plan = build(graph, Schedule(8, Dispatch.STATIC, split={"up": split}, interleaving=Abreast(8)))
        assert plan.items.op.tolist() == expected


@pytest.mark.parametrize("workers", [0, -3])
def test_no_workers_cannot_run_ops_abreast(workers: int) -> None:
    with pytest.raises(OrderError, match=rf"Abreast\({workers}\); use at least one worker"):
        Abreast(workers)


@EXAMPLES
@given(st.data())
def test_interleavings_put_every_producer_before_its_consumers(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    drawn = data.draw(schedules(graph))
    plan = build(graph, drawn)
    dependencies = Dependencies(graph)
    last = {}
    for n, tile in enumerate((dependencies.base[plan.items.op] + plan.items.tile).tolist()):
        last[tile] = n
    for n, (op, tile) in enumerate(zip(plan.items.op.tolist(), plan.items.tile.tolist(), strict=True)):
        coords = graph.ops[op].compute_coords(np.array([tile]))
        k_lo, k_hi = plan.items.k_lo[[n]], plan.items.k_hi[[n]]
        for link in dependencies.find_links(op):
            lo, hi = link.target.compute_bounds(graph.tensor(link.tensor).shape, coords, k_lo, k_hi)
            for producer in dependencies.find_producers(link, lo, hi)[0].tolist():
                assert last[producer] < n


# ---------------------------------------------------------------- splits


def letters(split: Split, tiles: int, chunks: int) -> str:
    """One word per tile, one letter per chunk, a new letter for each item."""
    rows = [""] * tiles
    for letter, tile, lo, hi in zip("abcdefghijklmnopqrstuvwxyz", *split.list_items(tiles, chunks), strict=False):
        rows[tile] += letter * int(hi - lo)
    return " ".join(rows)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (WholeTiles(), "aaaa bbbb cccc dddd eeee ffff"),
        (SplitK(1), "aaaa bbbb cccc dddd eeee ffff"),
        (SplitK(2), "aagg bbhh ccii ddjj eekk ffll"),
        (SplitK(3), "agmm bhnn cioo djpp ekqq flrr"),
        (StreamK(1), "aaaa bbbb cccc dddd eeee ffff"),
        (StreamK(4), "aaaa bbcc dddd eeee ffgg hhhh"),  # parts of 6 chunks end after 6, 12 and 18
        (SplitTail(0, 3), "aaaa bbbb cccc dddd eeee ffff"),
        (SplitTail(2, 3), "aaaa bbbb cccc dddd eeeg fffh"),
        (SplitTail(2, 4), "aaaa bbbb cccc dddd eeee ffff"),  # nothing is left to cut off
        (SplitTail(9, 1), "aggg bhhh ciii djjj ekkk flll"),
        (StreamK(5), "aaaa bbbb cddd eeff gggh iiii"),  # parts end after 4, 9, 14 and 19
    ],
    ids=str,
)
def test_splits_of_six_tiles_of_four_chunks(split: Split, expected: str) -> None:
    assert letters(split, 6, 4) == expected


@pytest.mark.parametrize(
    ("tiles", "chunks", "workers", "expected"),
    [
        (6, 8, 4, SplitTail(2, 4)),  # two begin, two run an end each: halves
        (7, 8, 4, SplitTail(3, 6)),  # three begin, one runs three ends of a quarter
        (5, 8, 4, SplitTail(1, 4)),  # one begins, and one of the other three runs its end
        (8, 9, 5, SplitTail(3, 6)),  # three begin, two run two ends at most
        (6, 2, 4, SplitTail(2, 1)),
        (7, 1, 4, WholeTiles()),
        (8, 8, 4, WholeTiles()),
        (2, 8, 4, SplitTail(2, 4)),
    ],
)
def test_a_last_wave_is_cut_so_that_those_who_end_it_finish_with_those_who_begin(
    tiles: int, chunks: int, workers: int, expected: Split
) -> None:
    assert SplitTail.for_last_wave(tiles, chunks, workers) == expected


@pytest.mark.parametrize(
    ("cuts", "text"),
    [([-1], "cuts from -1 to -1"), ([13], "cuts from 13 to 13"), ([1, 13], "cuts from 1 to 13"), ([0, 12], "")],
)
def test_cuts_of_a_users_split_stay_within_its_tiles(cuts: list[int], text: str) -> None:
    class Own(Split):
        def compute_cuts(self, tiles: int, chunks: int) -> np.ndarray:
            return np.array(cuts)

    if not text:
        assert [column.tolist() for column in Own().list_items(3, 4)] == [[0, 1, 2], [0, 0, 0], [4, 4, 4]]
        return
    with pytest.raises(OrderError, match=f"{text}; keep within 0 to 12"):
        Own().list_items(3, 4)


def test_split_of_more_parts_than_chunks_gives_one_item_per_chunk() -> None:
    assert letters(SplitK(9), 2, 3) == "ace bdf"
    assert letters(StreamK(100), 2, 3) == "abc def"


def test_op_without_a_reduction_is_never_split() -> None:
    assert letters(SplitK(4), 3, 1) == letters(StreamK(4), 3, 1) == "a b c"


def test_panels_of_more_rows_than_there_are_are_one_panel() -> None:
    for order in (GroupedColumnMajor, GroupedSerpentine):
        np.testing.assert_array_equal(order(2**70).compute_permutation((4, 3)), order(4).compute_permutation((4, 3)))
    plans = [build(two_matmuls(), Schedule(4, interleaving=RowPanels(rows))) for rows in (4, 2**70)]
    np.testing.assert_array_equal(plans[0].items.tile, plans[1].items.tile)


def test_split_falls_on_chunks_and_the_last_is_short() -> None:
    graph = two_matmuls(1, (1, 10, 1), up=(1, 10), down=(1, 1), block=4)
    plan = build(graph, Schedule(1, split={"down": SplitK(2)}))
    down = plan.items.op == 1
    assert list(zip(plan.items.k_lo[down].tolist(), plan.items.k_hi[down].tolist(), strict=True)) == [
        (0, 4),
        (4, 10),
    ]


@pytest.mark.parametrize("split", [SplitK, StreamK])
def test_split_into_nothing_is_refused(split: type[Split]) -> None:
    with pytest.raises(OrderError, match=rf"{split.__name__}\(0\); use at least one (part|share)"):
        split(0)


@EXAMPLES
@given(SPLITS, st.integers(1, 12), st.integers(1, 12))
def test_items_of_any_split_cover_all_chunks_once_and_run_each_tile_in_order(
    split: Split, tiles: int, chunks: int
) -> None:
    tile, lo, hi = split.list_items(tiles, chunks)
    for t in range(tiles):
        parts = zip(lo[tile == t].tolist(), hi[tile == t].tolist(), strict=True)
        assert [c for a, b in parts for c in range(a, b)] == list(range(chunks))
    assert sorted(set(tile.tolist())) == list(range(tiles))
    assert (lo < hi).all()


@EXAMPLES
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 12))
def test_stream_k_parts_differ_by_at_most_one_chunk(parts: int, tiles: int, chunks: int) -> None:
    cuts = np.concatenate([[0], StreamK(parts).compute_cuts(tiles, chunks), [tiles * chunks]])
    assert np.ptp(np.diff(cuts)) <= 1
