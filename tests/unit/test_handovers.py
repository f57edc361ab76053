"""Waits of ops and their exposed part: by hand, and against a summary and an enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.planner.handovers import compute_exposed_ns, find_hand_offs
from interlace.planner.predict import predict
from interlace.trace.summary import Summary
from interlace.workloads import LLAMAS, build_decode_graph

from .test_trace_summary import trace


def test_what_is_exposed_is_what_no_item_of_the_worker_covers() -> None:
    rows = [
        (0, 0, 0, 10, 60),  # nothing to do at first
        (1, 0, 40, 100, 120),  # the loads ran ahead until 60
        (1, 0, 50, 110, 130),  # waits while the item before works, then not
        (1, 1, 0, 100, 130),  # another worker
        (1, 2, 5, 5, 200),
        (1, 2, 20, 90, 210),
    ]
    assert compute_exposed_ns(trace(rows)).tolist() == [10, 40, 40, 100, 0, 0]
    assert not len(compute_exposed_ns(trace([])))


def test_tiles_are_counted_for_each_op_of_an_item_whoever_shares_a_semaphore() -> None:
    x, a, b, out = (il.Tensor(name, (64, 64), il.bf16) for name in ("x", "a", "b", "out"))
    w = il.Tensor("w", (64, 64), il.bf16)
    tile = il.MatmulTile(16, 32, 64)
    ops = (
        il.matmul("first", x, w, a, tile=tile),
        il.matmul("second", a, w, b, tile=tile),
        il.matmul("third", b, w, out, residual=a, tile=tile),
    )
    graph = il.Graph("three", (x, w, a, b, out), ops, ("x", "w"), ("out",))
    for policy, of_residual in ((il.TileSync(), 1), (il.RowSync(), 2)):
        plan = il.build(graph, il.Schedule(4, policy=policy))
        found = find_hand_offs(plan, predict(plan, il.H200).trace)
        assert [each.op for each in found] == ["first", "second", "third"]
        assert found[0].awaited == ()
        assert found[1].awaited == (("first", 2),)
        assert found[2].awaited == (("first", of_residual), ("second", 2))


def test_a_step_waits_for_whole_rows_and_all_that_is_exposed_has_an_op() -> None:
    graph = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=2, vocabulary=4096), 1, 1088, il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    prediction = predict(plan, il.H200, il.MegakernelExecutor.build_mode(plan.graph, il.H200))
    found = {each.op: each for each in find_hand_offs(plan, prediction.trace)}
    tiles = {op.name: op.tiles for op in plan.graph.ops}
    assert found["layers.1.q_heads"].awaited == (("layers.0.x", tiles["layers.0.x"]),)
    assert dict(found["layers.1.x"].awaited)["layers.1.inner"] == tiles["layers.1.inner"]
    summary = Summary.from_trace(prediction.trace, plan.workers)
    exposed = sum(each.exposed_us for each in found.values())
    assert exposed == pytest.approx(summary.waiting * summary.span_ns / 1e3)
    assert exposed > 0


def test_a_plan_without_waits_hands_nothing_over() -> None:
    graph = il.workloads.one_matmul(64, 64, 64)
    plan = il.build(graph, il.Schedule(2))
    (only,) = find_hand_offs(plan, predict(plan, il.H200).trace)
    assert (only.op, only.awaited, only.exposed_us) == ("matmul", (), 0.0)
    assert np.all(plan.waits.ptr == 0)
