"""The planner: what it chooses, that it is proved and never worse than no planning, and what it says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import interlace as il
from interlace.plan.plan import Plan
from interlace.planner import shared_results, touch_cache
from interlace.planner.configs import ExecutorConfig, compare, explain_differences, find_rival, merge_configs
from interlace.planner.explain import Bottleneck, explain
from interlace.planner.predict import CHEAP, FINE, predict
from interlace.planner.search import search
from interlace.sim.modes import PERSISTENT, SERIAL, LLHandOffs, slow_to_plain_bodies
from interlace.sim.traffic import Touches
from interlace.sim.traffic import list_touches as all_touches

from ..draws import EXAMPLES

RELU = il.workloads.FFNShape(4096, 14336, il.Activation.RELU, False)
RING = il.make_megakernel_mode(192 << 10)


def ffn(m: int, tile: il.MatmulTile) -> il.Graph:
    return il.workloads.ffn(m, RELU, il.bf16, tile, tile)


def test_a_large_square_matmul_is_not_run_row_by_row() -> None:
    """As measured: 8192 cubed in 128 x 128 tiles reads 7.9 GB row by row, and least in groups of 8."""
    graph = il.workloads.one_matmul(8192, 8192, 8192, tile=il.MatmulTile(128, 128, 64))
    found = search(graph, il.H200, RING)
    assert found.best.schedule.order == il.GroupedColumnMajor(8)
    assert found.best.prediction.traffic.dram_read < 0.3 * found.baseline.prediction.traffic.dram_read
    assert found.best.prediction.us < 0.9 * found.baseline.prediction.us


def test_few_tokens_split_the_down_projection() -> None:
    """64 tiles of 64 rows on 132 SMs: whole, they leave half of the chip idle."""
    found = search(ffn(16, il.MatmulTile(16, 64, 256)), il.H200, RING)
    split = found.best.schedule.split
    assert isinstance(split, dict)
    assert isinstance(split["down"], il.SplitK)
    assert found.best.prediction.us < 0.9 * found.baseline.prediction.us


def test_tilings_compete() -> None:
    small, large = (ffn(2048, il.MatmulTile(128, n, 64)) for n in (128, 256))
    found = search((small, large), il.H200, RING)
    assert found.best.graph is large
    assert found.best.cost <= search(small, il.H200, RING).best.cost


def test_the_answer_is_the_same_each_time() -> None:
    graph = ffn(512, il.MatmulTile(128, 128, 64))
    first, second = (search(graph, il.H200, RING) for _ in range(2))
    assert first.plan.to_json() == second.plan.to_json()
    assert first.tried_candidates == second.tried_candidates


@settings(EXAMPLES, max_examples=15)
@given(st.integers(1, 300), st.sampled_from([(16, 64, 64), (32, 32, 64), (64, 64, 32)]), st.integers(1, 4))
def test_it_is_proved_and_predicted_no_slower_than_no_planning(m: int, tile: tuple[int, int, int], width: int) -> None:
    shape = il.workloads.FFNShape(64 * width, 96 * width, il.Activation.RELU, False)
    tiles = il.MatmulTile(*tile)
    found = search(il.workloads.ffn(m, shape, il.bf16, tiles, tiles), il.CPU)
    assert found.proof.plan is found.plan
    assert il.verify(found.plan).edges == found.proof.edges
    assert found.best.prediction.us <= found.baseline.prediction.us
    assert [c.cost for c in found.ranking] == sorted(c.cost for c in found.ranking)


def test_what_it_plans_runs_right() -> None:
    shape = il.workloads.FFNShape(64, 160, il.Activation.RELU, False)
    tile = il.MatmulTile(16, 32, 16)
    found = search(il.workloads.ffn(40, shape, il.fp32, tile, tile), il.CPU)
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(found.plan.graph.tensor(name).shape) for name in found.plan.graph.inputs}
    right = np.maximum(inputs["x"] @ inputs["w_up"].T, 0) @ inputs["w_down"].T
    out = il.ReferenceExecutor(found.proof).run(inputs)["out"]
    np.testing.assert_allclose(out, right, rtol=1e-9)


def test_what_a_search_looks_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gated FFN of 8192 tokens, 9,216 tiles: dependencies once, most candidates coarsely, finalists finely."""
    found: list[il.Graph] = []
    looked_at: list[int] = []

    def dependencies(graph: il.Graph) -> il.Dependencies:
        found.append(graph)
        return il.Dependencies(graph)

    def touches(plan: il.Plan, *limits: int) -> Touches:
        some = all_touches(plan, *limits)
        looked_at.append(len(some))
        return some

    monkeypatch.setattr(shared_results, "Dependencies", dependencies)
    monkeypatch.setattr(touch_cache, "list_touches", touches)
    tile = il.MatmulTile(128, 128, 64)
    graph = il.workloads.ffn(8192, il.workloads.MODELS["llama3-8b"], il.bf16, tile, tile)
    planned = search(graph, il.H200, RING)
    assert found == [graph]
    assert planned.tried_candidates <= 30
    assert len(looked_at) <= 10, "once for each set of items, coarsely and finely"
    coarse = max(CHEAP, 64 * 9216)
    assert max(looked_at) <= FINE
    assert sum(looked_at) <= coarse * len(looked_at) + 3 * (FINE - coarse)


def test_static_dispatch_wins_where_tickets_cost_more_than_they_level() -> None:
    """Four full waves of equal tiles: a ticket levels nothing and costs each tile."""
    graph = il.workloads.one_matmul(128 * 48, 128 * 11, 512, tile=il.MatmulTile(128, 128, 64))
    assert search(graph, il.H200).plan.dispatch is il.Dispatch.STATIC
    assert search(graph, il.H200, RING).plan.dispatch is il.Dispatch.TICKET


def test_progress_counts_candidates() -> None:
    seen: list[int] = []
    found = search(ffn(16, il.MatmulTile(16, 64, 256)), il.H200, RING, seen.append)
    assert seen == list(range(1, found.tried_candidates + 1))


def test_no_graph_is_refused() -> None:
    with pytest.raises(il.errors.PlanError, match="no graph"):
        search([], il.H200)


# ---------------------------------------------------------------- explain


def test_memory_limits_few_tokens_and_arithmetic_many() -> None:
    for m, tile, limit in (
        (1, il.MatmulTile(16, 64, 256), Bottleneck.MEMORY),
        (4096, il.MatmulTile(128, 256, 64), Bottleneck.COMPUTE),
    ):
        told = explain(search(ffn(m, tile), il.H200, RING), il.H200, RING)
        assert {op.limit for op in told.ops} == {limit}
        assert [op.op for op in told.ops] == ["up", "down"]


def test_a_reason_is_what_taking_a_decision_back_costs() -> None:
    graph = ffn(1024, il.MatmulTile(128, 256, 64))
    found = search(graph, il.H200, RING)
    told = explain(found, il.H200, RING)
    reasons = {r.decision: r for r in told.reasons}
    plain = il.Schedule(132)
    decisions = ("order", "interleaving", "split", "policy", "dispatch")
    departed = {d for d in decisions if getattr(found.best.schedule, d) != getattr(plain, d)}
    assert set(reasons) == departed
    assert "order" in departed
    assert reasons["order"].without_us > found.best.prediction.us
    assert reasons["order"].without_bytes > found.best.prediction.traffic.dram_read


def test_the_winner_is_told_under_every_dispatch() -> None:
    graph = il.workloads.two_copies(256, 256)
    found = search(graph, il.H200)
    told = explain(found, il.H200, dispatches=tuple(il.Dispatch)).dispatches_us
    assert next(iter(told)) is found.plan.dispatch
    assert {*told} == {*il.Dispatch} - {il.Dispatch.SPAWN}  # which is for tiles that spawn tiles
    for dispatch, us in told.items():
        plan = il.build(graph, replace(found.best.schedule, dispatch=dispatch))
        assert us == predict(plan, il.H200, limit=FINE).us
    serial = slow_to_plain_bodies(SERIAL)
    assert explain(search(graph, il.H200, serial), il.H200, serial, tuple(il.Dispatch)).dispatches_us == {}


def test_figures_stand_beside_bounds() -> None:
    found = search(ffn(1024, il.MatmulTile(128, 256, 64)), il.H200, RING)
    told = explain(found, il.H200, RING)
    traffic = found.best.prediction.traffic
    assert all(each.bound.bytes <= traffic.dram_read + traffic.written_bytes for each in told.bounds)
    # 0.75 pJ per FLOP, 31.36 pJ per byte of memory, 12.5 of the L2, 2 x 2.5 of shared memory.
    moved = traffic.dram_read + traffic.written_bytes
    joules = 4e-12 * 0.75 * 1024 * 4096 * 14336 + 31.36e-12 * moved + 17.5e-12 * traffic.touched_bytes
    assert told.energy.joules == pytest.approx(joules, rel=1e-3)


def test_a_graph_that_is_no_chain_of_matmuls_has_its_compulsory_bound() -> None:
    graph = il.workloads.two_copies(256, 256)
    told = explain(search(graph, il.CPU), il.CPU)
    assert [each.bound.bytes for each in told.bounds] == [256 * 256 * 2, 256 * 256 * 2 * 3]
    assert predict(told.search_result.plan, il.CPU).traffic.compulsory_bytes == 256 * 256 * 2


# ---------------------------------------------------------------- executors side by side


def make_configs() -> list[ExecutorConfig]:
    graphs = ffn(1024, il.MatmulTile(128, 256, 64)), ffn(1024, il.MatmulTile(128, 128, 64))
    plain, both = slow_to_plain_bodies(SERIAL), tuple(il.Dispatch)
    return [
        ExecutorConfig(("serial",), graphs, plain, both),
        ExecutorConfig(("persistent",), graphs, slow_to_plain_bodies(PERSISTENT), both),
        ExecutorConfig(("pdl",), graphs, plain, both),
        ExecutorConfig(("ring",), graphs[:1], RING, (il.Dispatch.TICKET,)),
    ]


def test_executors_that_are_planned_alike_are_one_way() -> None:
    assert [way.names for way in merge_configs(make_configs())] == [("serial", "pdl"), ("persistent",), ("ring",)]


def make_ll_hand_offs(plan: Plan) -> LLHandOffs:
    """All of it."""
    return LLHandOffs(np.ones(len(plan.waits), np.bool_), plan.items.post >= 0)


def test_what_words_are_worth_is_told_where_there_are_any_and_a_launch_without_is_no_rival() -> None:
    graphs, tickets = (ffn(1024, il.MatmulTile(128, 256, 64)),), (il.Dispatch.TICKET,)
    launches = [
        ExecutorConfig((name,), graphs, replace(RING, ll_hand_offs=of), tickets)
        for name, of in (("a", make_ll_hand_offs), ("b", None))
    ]
    entries = compare([*launches, ExecutorConfig(("serial",), graphs, SERIAL, tickets)], il.H200)
    words, semaphores, serial = sorted(entries, key=lambda entry: entry.config.name)
    assert words.best.us < semaphores.best.us
    assert find_rival([words, semaphores, serial]) is serial
    found = {reason.decision: reason for reason in explain_differences(words, semaphores, il.H200)}
    assert [*found] == ["executor", "hand-offs"]
    assert found["hand-offs"].without_us > words.best.us
    (same,) = compare(
        [ExecutorConfig(("a",), graphs, replace(RING, ll_hand_offs=LLHandOffs.without_ll), tickets)], il.H200
    )
    assert [reason.decision for reason in explain_differences(same, semaphores, il.H200)] == ["executor"]


def test_every_way_is_planned_at_its_best_and_the_fastest_is_told_apart_one_difference_at_a_time() -> None:
    seen: list[int] = []
    entries = compare(merge_configs(make_configs()), il.H200, seen.append)
    assert seen == list(range(1, sum(entry.search_result.tried_candidates for entry in entries) + 1))
    times = [entry.best.us for entry in entries]
    assert times == sorted(times)
    best, other = entries[0], next(entry for entry in entries if "serial" in entry.config.names)
    assert best.config.name == "ring", "whose bodies reach the rates"
    assert other.best.us == search(other.config.graphs, il.H200, other.config.mode).best.prediction.us
    found = {reason.decision: reason for reason in explain_differences(best, other, il.H200)}
    assert list(found) == ["executor", "launches", "loads ahead of waits", "bodies"]
    assert found["executor"].without_us == other.best.us > best.best.us
    plan = best.search_result.plan
    assert found["loads ahead of waits"].without_us == predict(plan, il.H200, PERSISTENT, limit=FINE).us
    assert found["bodies"].without_us == predict(plan, il.H200, slow_to_plain_bodies(RING), limit=FINE).us
    assert found["bodies"].without_us > best.best.us
    (persistent,) = (entry for entry in entries if entry.config.name == "persistent")
    assert [r.decision for r in explain_differences(persistent, other, il.H200)] == ["executor", "launches"]
