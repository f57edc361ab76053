"""Attention over sequences of mixed length: equal shares, and what tiles make of their table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlace as il
from interlace.core.dtypes import int32
from interlace.core.errors import ArgumentError, ShapeError
from interlace.kernels.attend import BLOCK
from interlace.kernels.attend.shares import build_share_table
from interlace.kernels.combine import combine
from interlace.workloads.ragged import Lengths, RaggedAttention, ragged_attention

from ..draws import EXAMPLES

SMALL = RaggedAttention.from_fields({"longest": 150}, gpu=False)


def test_shares_of_three_sequences_are_those_of_the_example() -> None:
    table, first, rows = build_share_table([700, 0, 100], 3, BLOCK)
    assert table.tolist() == [[0, 0, 320], [0, 320, 640], [2, 0, 100], [0, 640, 700], [1, 0, 0], [-1, 0, 0]]
    assert (first.tolist(), rows.tolist()) == ([0, 3, 4, 5], [0, 1, 3, 4, 2, 5])


@EXAMPLES
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=9), st.integers(1, 40), st.sampled_from((16, 64)))
def test_every_position_is_in_one_share_and_full_ones_are_equal(lengths: list[int], count: int, block: int) -> None:
    table, first, rows = build_share_table(lengths, count, block)
    assert (np.diff(table[:, 2] - table[:, 1]) <= 0).all()
    assert sorted(rows.tolist()) == [*range(len(table))]
    table = table[rows]
    blocks = sum(-(-at // block) for at in lengths)
    each = max(-(-blocks // count), 1) * block
    assert (len(table), first[0], len(first)) == (count + len(lengths), 0, len(lengths) + 1)
    for b, at in enumerate(lengths):
        low, high = table[first[b] : first[b + 1], 1:].T.tolist()
        assert set(table[first[b] : first[b + 1], 0].tolist()) == {b}
        assert (low[0], high[-1], low[1:]) == (0, at, high[:-1])
        assert all(end - begin == each for begin, end in zip(low[:-1], high[:-1], strict=True))
        assert high[-1] - low[-1] <= each
    assert (table[first[-1] :] == [-1, 0, 0]).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([3], 0, 64), ShapeError, "build_share_table has count 0; use a positive number"),
        (([3], 2.0, 64), ArgumentError, "build_share_table"),
        (([3, -1], 2, 64), ShapeError, r"build_share_table has lengths \[3, -1\]; give one, from 0, for each sequence"),
    ],
)
def test_shares_of_nothing_are_refused(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_share_table(*arguments)


def test_ops_on_shares_take_what_fits_them() -> None:
    graph = SMALL.build_graph(il.CPU)
    parts, peak, total = (graph.tensor(name) for name in ("parts", "peak", "total"))
    out, first, rows = (graph.tensor(name) for name in ("out", "first", "rows"))
    short = il.Tensor("first", (1,), int32)
    with pytest.raises(ShapeError, match="which is of no sequence"):
        combine("combine", parts, peak, total, out, first=short, rows=rows)
    of = [replace(t, shape=(*t.shape[:2], 2, *t.shape[3:])) for t in (parts, peak, total)]
    with pytest.raises(ShapeError, match=r"parts .* must have one split each"):
        combine("combine", *of, out, first=first, rows=rows)
    with pytest.raises(ArgumentError, match="rows"):
        combine("combine", parts, peak, total, out, first=first)
    given = {name: graph.tensor(name) for name in graph.inputs if name not in ("first", "rows")}
    given["shares"] = il.Tensor("shares", (7, 3), int32)
    with pytest.raises(ShapeError, match="shares"):
        il.kernels.attend.attend("attend", **given, out=parts, peak=peak, total=total)


def test_lengths_are_as_they_are_named() -> None:
    def draw_lengths(kind: Lengths, draw: int = 0) -> list[int]:
        return sorted(
            RaggedAttention.from_fields({"lengths": kind, "longest": 6400, "draw": draw}, gpu=True).cached_lengths
        )

    assert draw_lengths(Lengths.GIANT)[-1] == 6400
    assert draw_lengths(Lengths.GIANT)[-2] <= 100
    assert draw_lengths(Lengths.ZIPF)[-3:] == [int(np.ceil(6400 / rank**1.2)) for rank in (3, 2, 1)]
    assert 0.4 < np.mean(draw_lengths(Lengths.UNIFORM)) / 6400 < 0.6
    assert draw_lengths(Lengths.UNIFORM) != draw_lengths(Lengths.UNIFORM, draw=1)


def test_the_longest_share_is_a_part_of_the_work_whatever_the_lengths_are() -> None:
    """Where sequences are split alike the longest split is that of the longest sequence."""
    problem = RaggedAttention.from_fields({"lengths": Lengths.GIANT}, gpu=True)
    table, *_ = build_share_table(problem.cached_lengths, problem.num_splits, BLOCK)
    most = (table[:, 2] - table[:, 1]).max()
    assert most <= sum(problem.cached_lengths) / problem.num_splits + 2 * BLOCK
    own = replace(problem, shares=0).build_graph(il.H200).op("attend").grid[2]
    assert (own, problem.build_graph(il.H200).op("attend").grid) == (1, (16 + 32, 8, 1))
    assert most * 10 < max(problem.cached_lengths) / own


def test_shares_and_splits_mean_the_same() -> None:
    inputs = SMALL.make_inputs(1)
    own = replace(SMALL, shares=0)
    found = [
        il.ReferenceExecutor(il.build(problem.build_graph(il.CPU), il.Schedule(3))).run(
            {name: inputs[name] for name in problem.build_graph(il.CPU).inputs}
        )["out"]
        for problem in (SMALL, own)
    ]
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- the megakernel, emulated

LENGTHS = (150, 0, 64, 33)
#: Elements of a head and heads of queries: with sums of products, and on tensor cores.
SHAPES = ((16, 4), (64, 6))


@cache
def launches() -> dict[tuple[int, int], Any]:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from ..emulator.programs import EmulatedLaunch, prepare

    graphs = {
        (d, heads): ragged_attention(len(LENGTHS), 192, heads, 2, d, il.bf16, parts=3, shares=True)
        for d, heads in SHAPES
    }
    made = {shape: EmulatedLaunch(il.build(graph, il.Schedule(1)), stages=3) for shape, graph in graphs.items()}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_one_launch_attends_by_shares(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    from ..emulator.build import MISSING

    if MISSING:
        pytest.skip(MISSING)
    run = launches()[shape]
    problem = RaggedAttention(shape[1], 2, shape[0], len(LENGTHS), 191)
    drawn = dict(replace(problem, shares=0).make_inputs(0))
    table, first, rows = build_share_table(LENGTHS, 3, BLOCK)
    drawn |= {"position": np.array(LENGTHS, np.float32), "shares": table, "first": first, "rows": rows}
    for b, at in enumerate(LENGTHS):
        for name in ("k_cache", "v_cache"):
            drawn[name][b, :, at:] = np.nan
    from ..cases import TORCH

    t = {name: torch.from_numpy(drawn[name]).to(TORCH[run.plan.graph.tensor(name).dtype.name]) for name in drawn}
    t["out"] = torch.full_like(run.allocate_tensor("out"), float("nan"))
    run.run(t)
    assert [str(fault) for fault in run.faults] == []
    right = il.ReferenceExecutor(run.plan).run({name: t[name].double().numpy() for name in run.plan.graph.inputs})
    np.testing.assert_allclose(t["out"].double().numpy(), right["out"], atol=1.5e-2, rtol=0)
