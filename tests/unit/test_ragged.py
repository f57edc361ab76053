"""Ragged rows and ranges of integers, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.graph import ragged
from interlace.graph.ragged import (
    Groups,
    compute_offsets,
    expand_ranges,
    find_distinct,
    fold,
    group_by,
    iter_batches,
    iter_slices,
    mark_covered,
)

from ..draws import EXAMPLES
from .graphs import column


@EXAMPLES
@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from((-(2**62), -1, 0, 1, 2, 2**62)), min_size=width, max_size=width),
            min_size=1,
            max_size=20,
        )
    )
)
def test_distinct_numbers_equal_rows_alike_in_sorted_order(rows: list[list[int]]) -> None:
    table = np.array(rows, np.int64)
    first, cls = find_distinct(*table.T)
    ranked = sorted(set(map(tuple, rows)))
    assert cls.tolist() == [ranked.index(tuple(row)) for row in rows]
    assert first.tolist() == [rows.index(list(row)) for row in ranked]


def test_distinct_of_nothing_is_nothing() -> None:
    first, cls = find_distinct(column(), column())
    assert (len(first), len(cls)) == (0, 0)


def test_groups_are_ragged_rows() -> None:
    groups = Groups(column(0, 2, 2, 5), column(7, 8, 1, 2, 3))
    assert len(groups) == 3
    assert groups.sizes.tolist() == [2, 0, 3]
    assert groups.rows.tolist() == [0, 0, 2, 2, 2]
    taken = groups.take(column(2, 1, 2))
    assert taken.ptr.tolist() == [0, 3, 3, 6]
    assert taken.values.tolist() == [1, 2, 3, 1, 2, 3]


def test_ranges_and_offsets_lay_arithmetic_runs_end_to_end() -> None:
    assert compute_offsets(column(2, 0, 3)).tolist() == [0, 2, 2, 5]
    assert expand_ranges(column(10, 5, 0), column(2, 0, 3)).tolist() == [10, 11, 0, 1, 2]
    assert expand_ranges(column(10, 0), column(2, 3), column(-1, 4)).tolist() == [10, 9, 0, 4, 8]


def test_grouped_lists_positions_by_entry() -> None:
    groups = group_by(column(2, 0, 2, 3), 5)
    assert [groups[row].tolist() for row in range(5)] == [[1], [], [0, 2], [3], []]


def test_batches_and_slices_hold_at_most_what_is_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "BATCH_ENTRIES", 6)
    assert list(iter_batches(column(3, 3, 1, 9, 0, 5, 2))) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(iter_slices(7, 2)) == [(0, 3), (3, 6), (6, 7)]
    assert list(iter_slices(2, 100)) == [(0, 1), (1, 2)]
    assert list(iter_slices(0, 1)) == list(iter_batches(column())) == []


some_ranges = st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30), st.integers(1, 7)), max_size=40)


def columns_of(drawn: list[tuple[int, int, int]], numbers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first, count, stride) of ranges cut off at ``numbers``."""
    cut = [(first, min(count, (numbers - 1 - first) // stride + 1), stride) for first, count, stride in drawn]
    return tuple(np.array([r[c] for r in cut], np.int64) for c in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("batch", [1, 7, 1 << 20])
@EXAMPLES
@given(st.data(), some_ranges)
def test_fold_is_the_extreme_of_every_range(batch: int, data: st.DataObject, drawn: list[tuple[int, int, int]]) -> None:
    values = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=30, max_size=30)))
    first, count, stride = columns_of(drawn, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BATCH_ENTRIES", batch)
        listed = [values[a : a + (n - 1) * s + 1 : s] for a, n, s in zip(first, count, stride, strict=True)]
        for ufunc, extreme in ((np.minimum, min), (np.maximum, max)):
            assert fold(ufunc, values, first, count, stride).tolist() == [extreme(some) for some in listed]


@pytest.mark.parametrize("batch", [1, 7, 1 << 20])
@EXAMPLES
@given(some_ranges)
def test_held_marks_what_any_range_holds(batch: int, drawn: list[tuple[int, int, int]]) -> None:
    first, count, stride = columns_of(drawn, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BATCH_ENTRIES", batch)
        marked = mark_covered(first, count, stride, 30)
    expected = {int(a + i * s) for a, n, s in zip(first, count, stride, strict=True) for i in range(n)}
    assert np.flatnonzero(marked).tolist() == sorted(expected)


def test_ranges_that_overlap_are_folded_and_marked_without_being_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = 0

    def count_ranges(first: np.ndarray, sizes: np.ndarray, stride: np.ndarray | int = 1) -> np.ndarray:
        nonlocal listed
        listed += int(sizes.sum())
        return expand_ranges(first, sizes, stride)

    monkeypatch.setattr(ragged, "expand_ranges", count_ranges)
    n = 4096
    values, zero = np.random.default_rng(0).permutation(3 * n), np.zeros(n, np.int64)
    for stride in (1, 3):
        each = np.full(n, stride)
        assert (fold(np.maximum, values, zero, zero + n, each) == values[: n * stride : stride].max()).all()
        prefixes = fold(np.minimum, values, zero, np.arange(1, n + 1), each)
        assert np.array_equal(prefixes, np.minimum.accumulate(values[: n * stride : stride]))
        assert mark_covered(zero, np.arange(1, n + 1), each, 3 * n).sum() == n
    assert listed < 3 * n  # not n * n: `held` lists what the joined ranges hold
