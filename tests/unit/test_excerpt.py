"""Excerpts of graphs of layers: what they keep, and that what is said of them is what is said of the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.models.llama import LLAMAS, build_decode_graph
from interlace.plan.plan import Waits
from interlace.planner import search as searching
from interlace.planner.excerpt import Excerpt
from interlace.planner.explain import explain
from interlace.planner.predict import FINE, predict
from interlace.planner.search import search
from interlace.planner.shared_results import SharedResults
from interlace.planner.touch_cache import TouchCache
from interlace.planner.waits import derive_waits
from interlace.policies.interleavings import HalfRowPanels
from interlace.policies.splits import SplitK
from interlace.sim.modes import SEMAPHORE_STREAMS, make_streams_mode, slow_to_plain_bodies
from interlace.sim.traffic import MAX_ENTRIES, list_touches
from interlace.trace.summary import Summary

RING = il.make_megakernel_mode(192 << 10)
MODEL = replace(LLAMAS["llama3.2-1b"], hidden=256, ffn=512, heads=4, kv_heads=2, vocabulary=1024)


def layers(count: int) -> il.Graph:
    return build_decode_graph(replace(MODEL, layers=count), 1, 128, il.H200)


def test_the_first_the_second_and_the_last_layer_stand_for_all() -> None:
    graph = layers(6)
    excerpt = Excerpt.from_graph(graph)
    kept = {op.name.split(".")[1] for op in excerpt.graph.ops if op.name.startswith("layers.")}
    assert kept == {"0", "1", "5"}
    assert excerpt.omitted_layers == 3
    assert {excerpt.graph.ops[o].name.split(".")[1] for o in excerpt.middle} == {"1"}
    outside = [op.name for op in graph.ops if not op.name.startswith("layers.")]
    assert [op.name for op in excerpt.graph.ops if not op.name.startswith("layers.")] == outside
    il.Dependencies(excerpt.graph)  # nothing is read that nothing writes


@pytest.mark.parametrize("graph", [layers(3), il.workloads.two_copies(256, 256)])
def test_graphs_without_many_layers_are_planned_whole(graph: il.Graph) -> None:
    excerpt = Excerpt.from_graph(graph)
    assert excerpt.graph is excerpt.full_graph is graph
    assert excerpt.omitted_layers == 0


def test_layers_that_differ_are_planned_whole() -> None:
    graph = layers(6)
    odd = replace(graph.op("layers.3.attend"), flops=1.0)
    ops = tuple(odd if op.name == odd.name else op for op in graph.ops)
    different = replace(graph, ops=tuple(replace(op, body=None) for op in ops))
    assert Excerpt.from_graph(different).graph is different


def test_what_a_layer_reads_of_the_one_before_is_read_of_the_middle_one() -> None:
    x = [il.Tensor("x", (64, 64), il.bf16), *(il.Tensor(f"layers.{n}.out", (64, 64), il.bf16) for n in range(5))]
    copy = il.workloads.two_copies(64, 64).ops[0]

    def layer(n: int) -> il.Op:
        (read,), (write,) = copy.reads, copy.writes
        reads, writes = (replace(read, tensor=x[n].name),), (replace(write, tensor=x[n + 1].name),)
        return replace(copy, name=f"layers.{n}.copy", reads=reads, writes=writes, body=None)

    graph = il.Graph("copies", tuple(x), tuple(map(layer, range(5))), ("x",), ("layers.4.out",))
    part = Excerpt.from_graph(graph).graph
    assert [op.name for op in part.ops] == ["layers.0.copy", "layers.1.copy", "layers.4.copy"]
    assert [op.reads[0].tensor for op in part.ops] == ["x", "layers.0.out", "layers.1.out"]


@pytest.mark.parametrize("interleaving", [il.OpAfterOp(), HalfRowPanels()])
def test_a_prediction_of_an_excerpt_is_one_of_the_whole(interleaving: il.Interleaving) -> None:
    graph = layers(7)
    excerpt = Excerpt.from_graph(graph)
    schedule = il.Schedule(8, interleaving=interleaving)
    after = [[o - 1] if o else [] for o in range(len(graph.ops))]
    after[3] = [0]  # two ops at a time
    for mode in (RING, SEMAPHORE_STREAMS, slow_to_plain_bodies(make_streams_mode(after))):
        whole = predict(il.build(graph, schedule), il.H200, mode, limit=FINE)
        part = predict(il.build(excerpt.graph, schedule), il.H200, excerpt.restrict_mode(mode), limit=FINE)
        assert excerpt.scale_us(part) == pytest.approx(whole.us, rel=0.01)
        assert excerpt.scale_dram_read(part) == pytest.approx(whole.traffic.dram_read, rel=0.01)
        right = Summary.from_trace(whole.trace, 8)
        told = excerpt.scale_summary(part)
        assert told.busy == pytest.approx(right.busy, abs=0.02)
        assert told.waiting == pytest.approx(right.waiting, abs=0.02)
        assert told.ops[-1].end_ns == pytest.approx(right.ops[-1].end_ns, rel=0.01)


def test_schedule_for_an_excerpt_is_lifted_to_all_layers() -> None:
    graph = layers(5)
    excerpt = Excerpt.from_graph(graph)
    split = {"layers.0.x": SplitK(2), "layers.1.x": SplitK(3), "layers.4.x": SplitK(4)}
    lifted = excerpt.extend_schedule(il.Schedule(132, split=split)).split
    assert isinstance(lifted, dict)
    assert [lifted[f"layers.{n}.x"] for n in range(5)] == [SplitK(2), SplitK(3), SplitK(3), SplitK(3), SplitK(4)]


def _make_excerpt(graph: il.Graph) -> Excerpt:
    return Excerpt(graph, graph)


def test_what_is_said_of_four_layers_is_what_a_search_of_all_of_them_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "ORDERS", searching.ORDERS[:2])
    monkeypatch.setattr(searching, "INTERLEAVINGS", searching.INTERLEAVINGS[:2])
    graph = layers(4)
    by_excerpt = search(graph, il.H200, RING)
    told = explain(by_excerpt, il.H200, RING, (il.Dispatch.STATIC, il.Dispatch.TICKET))
    monkeypatch.setattr(Excerpt, "from_graph", staticmethod(_make_excerpt))
    found = search(graph, il.H200, RING)
    right = explain(found, il.H200, RING, (il.Dispatch.STATIC, il.Dispatch.TICKET))
    assert by_excerpt.ranking[0].planner.excerpt.omitted_layers == 1
    assert by_excerpt.proof.plan.graph is graph
    assert by_excerpt.proof.edges == found.proof.edges
    assert by_excerpt.best.us == pytest.approx(found.best.us, rel=0.005)
    assert by_excerpt.compute_us(by_excerpt.baseline) == pytest.approx(found.baseline.us, rel=0.005)
    assert by_excerpt.best.dram_read == pytest.approx(found.best.dram_read, rel=0.005)
    assert told.floor_us == pytest.approx(right.floor_us, rel=0.005)
    assert [op.op for op in told.ops] == [op.op for op in right.ops] == [op.name for op in graph.ops]
    assert [op.limit for op in told.ops] == [op.limit for op in right.ops]
    assert [reason.decision for reason in told.reasons] == [reason.decision for reason in right.reasons]
    for mine, theirs in zip(told.reasons, right.reasons, strict=True):
        assert mine.without_us == pytest.approx(theirs.without_us, rel=0.01)
    assert told.dispatches_us == pytest.approx(right.dispatches_us, rel=0.01)


def test_what_plans_share_is_what_each_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Excerpt.from_graph(layers(4)).graph
    shared, touched = SharedResults(graph), TouchCache()
    cut = {"layers.1.x": SplitK(2)}
    drafts = [il.Schedule(132), il.Schedule(132, interleaving=HalfRowPanels(), split=cut), il.Schedule(132, split=cut)]
    plans = [il.build(graph, schedule, shared) for schedule in drafts]
    for plan in plans:
        mine, right = touched(plan, 1 << 20, MAX_ENTRIES), list_touches(plan, 1 << 20, MAX_ENTRIES)
        for name in ("step_ptr", "read_ptr", "reads", "write_ptr", "writes"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(right, name))

    def alone(self: SharedResults, *of: Any) -> Waits:
        return derive_waits(self.dependencies, *of)

    monkeypatch.setattr(SharedResults, "derive_waits", alone)
    assert [plan.to_json() for plan in plans] == [il.build(graph, schedule).to_json() for schedule in drafts]
