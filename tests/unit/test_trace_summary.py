"""Waves, tails and shares of hand-made traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import ItemError, PlanError
from interlace.trace.events import Trace
from interlace.trace.summary import Summary

from ..draws import EXAMPLES

Row = tuple[int, int, int, int, int]


def trace(rows: list[Row]) -> Trace:
    """Rows are (op, worker, wait, start, end)."""
    op, worker, wait, start, end = np.array(rows, np.int64).reshape(-1, 5).T
    return Trace(op, np.arange(len(op)), worker, worker, wait, start, end, ("up", "down"), "simulated")


def test_half_filled_last_wave_is_half_idle() -> None:
    summary = Summary.from_trace(trace([(0, 0, 0, 0, 100), (0, 1, 0, 0, 100), (0, 0, 100, 100, 200)]), workers=2)
    (up,) = summary.ops
    assert (up.op, up.items, up.waves, up.tail) == ("up", 3, 1.5, 0.5)
    assert (summary.span_ns, summary.busy, summary.waiting, summary.idle) == (200, 0.75, 0.0, 0.25)


def test_full_last_wave_is_idle_only_where_its_items_end_apart() -> None:
    summary = Summary.from_trace(trace([(0, 0, 0, 0, 100), (0, 1, 0, 0, 60)]), workers=2)
    assert summary.ops[0].waves == 1.0
    assert summary.ops[0].tail == pytest.approx(40 / 200)


def test_items_of_the_next_op_fill_a_tail_once_they_have_started() -> None:
    rows = [(0, 0, 0, 0, 100), (0, 1, 0, 0, 100), (0, 0, 100, 100, 200), (1, 1, 100, 140, 300), (1, 0, 200, 250, 300)]
    summary = Summary.from_trace(trace(rows), workers=2)
    up, down = summary.ops
    assert up.tail == pytest.approx(40 / 200)
    # The last wave of down is all of it, 140 to 300: 160 of worker 1, 60 and 50 of worker 0.
    assert (down.waves, down.tail) == (1.0, pytest.approx(50 / 320))
    assert (up.start_ns, up.end_ns, up.waiting_ns, up.working_ns) == (0, 200, 0, 300)
    assert (down.start_ns, down.end_ns, down.waiting_ns, down.working_ns) == (140, 300, 90, 210)
    assert (summary.busy, summary.waiting) == (510 / 600, 90 / 600)
    assert summary.idle == pytest.approx(0.0)


def test_items_that_overlap_on_a_worker_count_once() -> None:
    # The second item waits while the first still works, and starts before it has ended.
    summary = Summary.from_trace(
        trace([(0, 0, 1000, 1000, 1100), (1, 0, 1020, 1080, 1200), (1, 1, 1000, 1150, 1200)]), 2
    )
    assert summary.span_ns == 200
    assert (summary.busy, summary.waiting) == ((200 + 50) / 400, 150 / 400)


def test_workers_without_items_are_idle() -> None:
    summary = Summary.from_trace(trace([(0, 0, 0, 0, 100)]), workers=4)
    assert (summary.busy, summary.ops[0].waves, summary.ops[0].tail) == (0.25, 0.25, 0.75)


def test_items_that_take_no_time_have_no_tail() -> None:
    summary = Summary.from_trace(trace([(0, 0, 5, 5, 5)]), workers=1)
    assert (summary.span_ns, summary.busy, summary.ops[0].tail) == (0, 0.0, 0.0)


def test_no_workers_and_no_items_are_refused() -> None:
    with pytest.raises(PlanError, match="a trace of 0 workers"):
        Summary.from_trace(trace([(0, 0, 0, 0, 1)]), 0)
    with pytest.raises(ItemError, match="the trace has no items"):
        Summary.from_trace(trace([]), 1)


@EXAMPLES
@given(st.lists(st.tuples(*[st.integers(0, 3), *[st.integers(0, 30)] * 3]), min_size=1, max_size=12), st.data())
def test_shares_equal_a_count_of_every_nanosecond(times: list[tuple[int, ...]], data: st.DataObject) -> None:
    rows = [(data.draw(st.integers(0, 1)), w, *sorted(three)) for w, *three in times]
    summary = Summary.from_trace(trace(rows), workers=4)
    first, last = min(r[2] for r in rows), max(r[4] for r in rows)
    working = {(w, t) for _, w, _, start, end in rows for t in range(start, end)}
    present = {(w, t) for _, w, wait, _, end in rows for t in range(wait, end)}
    time = 4 * (last - first)
    if time:
        assert summary.busy == pytest.approx(len(working) / time)
        assert summary.waiting == pytest.approx(len(present - working) / time)
    for op in summary.ops:
        mine = sorted(r[3] for r in rows if r[0] == ("up", "down").index(op.op))
        begin = mine[-((len(mine) - 1) % 4 + 1)]
        end = max(r[4] for r in rows if r[0] == ("up", "down").index(op.op))
        busy = {(w, t) for w, t in working if begin <= t < end}
        assert op.tail == pytest.approx(1 - len(busy) / (4 * (end - begin)) if end > begin else 0.0)
