"""Rules of the reference executor, against values found by hand: who steals what, and the order of a sum's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.kernels.spin import spin
from interlace.plan.plan import Plan

from .graphs import column


def independent(count: int, dispatch: il.Dispatch, workers: Sequence[int], **fields: object) -> Plan:
    """Tiles that depend on nothing, on these workers."""
    ns, out = (il.Tensor(name, (count,), il.int32) for name in ("ns", "out"))
    graph = il.Graph("tiles", (ns, out), (spin("spin", ns, out),), ("ns",), ("out",))
    plan = il.build(graph, il.Schedule(max(workers) + 1, dispatch))
    plan = replace(plan, items=replace(plan.items, worker=column(*workers)))
    return replace(plan, **fields)  # type: ignore[arg-type]


def run_by(plan: Plan, seed: int | None = None) -> list[list[int]]:
    """The items that each worker ran, in order."""
    executor = il.ReferenceExecutor(plan, seed=seed)
    told = np.arange(len(plan.items))
    assert (executor.run({"ns": told})["out"] == told).all()
    trace = executor.trace
    assert trace is not None
    order = np.argsort(trace.wait_ns, kind="stable")
    return [[int(item) for item in order if trace.worker[item] == worker] for worker in range(plan.workers)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        # Worker 0 has one item, worker 1 has 1 to 8. Both run in step, so that worker 0 steals when 7 are left.
        (1, [[0, 2, 4, 6, 8], [1, 3, 5, 7]]),
        (2, [[0, 2, 3, 6, 7], [1, 4, 5, 8]]),
        (3, [[0, 2, 3, 4, 8], [1, 5, 6, 7]]),
        (None, [[0, 2, 3, 4, 5], [1, 6, 7, 8]]),
    ],
)
def test_a_thief_takes_at_most_so_many_items_and_at_most_half_of_the_rest(
    most: int | None, expected: list[list[int]]
) -> None:
    plan = independent(9, il.Dispatch.STEALING, [0, *[1] * 8], stealing=il.Stealing(most))
    assert run_by(plan) == expected


def test_the_next_victim_is_the_next_by_number_and_after_the_last_the_first() -> None:
    """In the second round worker 1 takes 7 from worker 2; in the third both take from worker 0."""
    plan = independent(9, il.Dispatch.STEALING, [0, 0, 0, 0, 0, 1, 2, 2, 2], stealing=il.Stealing(1))
    assert run_by(plan) == [[0, 1, 2], [5, 7, 3], [6, 8, 4]]


def test_a_random_victim_is_any_that_has_items_left() -> None:
    """Worker 0 runs one item, then takes from worker 1 or 2."""
    plan = independent(7, il.Dispatch.STEALING, [0, 1, 1, 1, 2, 2, 2], stealing=il.Stealing(1, il.Victim.RANDOM))
    assert {plan.items.worker[run_by(plan, seed)[0][1]] for seed in range(12)} >= {1, 2}


def test_parts_of_a_sum_are_added_in_the_order_of_the_reduction_whoever_is_first() -> None:
    """(2^60 + 1) - 2^60 is 0 in float64, in any other order of the three terms 1."""
    x, w, y = il.Tensor("x", (1, 48), il.fp32), il.Tensor("w", (1, 48), il.fp32), il.Tensor("y", (1, 1), il.fp32)
    op = il.matmul("sum", x, w, y, tile=il.MatmulTile(16, 16, 16))
    plan = il.build(il.Graph("sum", (x, w, y), (op,), ("x", "w"), ("y",)), il.Schedule(3, split=il.SplitK(3)))
    assert plan.items.k_lo.tolist() == [0, 16, 32]
    values = np.zeros((1, 48))
    values[0, [0, 16, 32]] = 2.0**60, 1.0, -(2.0**60)
    last = set()
    for seed in range(12):
        executor = il.ReferenceExecutor(plan, seed=seed)
        assert executor.run({"x": values, "w": np.ones((1, 48))})["y"] == 0.0
        assert executor.trace is not None
        last.add(int(np.argmax(executor.trace.end_ns)))
    assert len(last) > 1
