"""Spawning items follow from the graph; plans under which a spawned item could wait for ever are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import interlace as il
from interlace.bench.spawn import measure_rows
from interlace.core.errors import ParamError, PlanFormatError, ShapeError, SimulationError, SpawnError
from interlace.graph.access import ALL, Access, axes
from interlace.graph.op import Op
from interlace.kernels.quadrature import REFINE, integrate_exactly
from interlace.plan.spawns import Spawns, find_cleared_tensors
from interlace.sim.machine import Costs, compute_item_flops, simulate
from interlace.workloads import Quadrature, quadrature

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

(I,) = axes(1)
LEVELS = 4


def plan(graph: il.Graph | None = None, workers: int = 3, **schedule: object) -> il.Plan:
    return il.build(graph or quadrature(LEVELS, 2, 8, 1e-4), il.Schedule(workers, il.Dispatch.SPAWN, **schedule))


def inputs(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"centre": random.uniform(0, 1, 2), "width": 10 ** random.uniform(-2, 0, 2)}


def test_halves_are_spawned_by_their_interval_and_the_sum_runs_behind() -> None:
    spawns = Spawns.from_plan(plan())
    assert spawns.spawner.tolist() == [-1, *((n - 1) // 2 for n in range(1, 15)), -1]
    assert spawns.element.tolist() == [-1, *range(1, 15), -1]
    assert [spawns.children[n].tolist() for n in (0, 6, 7, 15)] == [[1, 2], [13, 14], [], []]
    assert (spawns.before.tolist(), spawns.after.tolist(), spawns.capacity) == ([0], [15], 15)
    assert find_cleared_tensors(plan().graph) == ("value", "wanted")


def test_a_graph_without_spawned_tiles_runs_before() -> None:
    spawns = Spawns.from_plan(plan(il.workloads.two_copies(64, 64, il.fp32)))
    assert len(spawns.before) == spawns.capacity == len(spawns.spawner)
    assert not len(spawns.after)


@pytest.mark.parametrize("seed", range(4))
def test_only_what_is_wanted_runs_and_the_result_is_that_of_any_dispatch(seed: int) -> None:
    given = inputs(seed)
    ticket = il.ReferenceExecutor(il.build(plan().graph, il.Schedule(3)))
    right = ticket.run(given)["out"]
    wanted = int(ticket._memory["wanted"][1:].sum())
    for steps in (None, 0, 1):
        run = il.ReferenceExecutor(plan(), seed=steps, first_run=2**31 - 1)
        for n in range(3):
            # Counters are as if every item had run once in each run, whether it was wanted or not.
            assert run._semaphores == il.ReferenceExecutor(plan(), first_run=2**31 - 1 + n)._semaphores
            assert run.run(given)["out"] == right
            assert run.trace is not None
            assert len(run.trace.op) == 2 + wanted
    assert ticket.trace is not None
    assert len(ticket.trace.op) == 16


def test_workers_that_find_nothing_wait_for_what_a_running_item_spawns() -> None:
    run = il.ReferenceExecutor(plan())
    run.run(inputs(0))
    assert run.trace is not None
    assert {*run.trace.worker.tolist()} == {0, 1, 2}  # the first item is one, and all others are spawned


def test_the_integral_is_as_exact_as_its_tolerance() -> None:
    graph = quadrature(9, 2, 16, 1e-6)
    out = il.ReferenceExecutor(plan(graph)).run(inputs(0))["out"][0]
    assert abs(out - integrate_exactly(*inputs(0).values())) < 1e-5
    with pytest.raises(ShapeError, match="level 20; use 0 to 19"):
        Quadrature(levels=21, peaks=1, points=8).build_graph(il.H200)


def test_a_tile_that_waits_for_one_that_may_never_run_is_refused() -> None:
    for policy in (il.KernelSync(), {"level1": il.KernelSync()}):
        with pytest.raises(SpawnError, match=r"level2', tile \(0\) waits for op 'level1', tile \(1\).*TileSync"):
            il.verify(plan(policy=policy))
    il.verify(plan(policy={"level0": il.KernelSync(), "level3": il.KernelSync()}))


def graph_of(when: il.DType = il.int32, writes: str = "flag", before: bool = False, given: bool = False) -> il.Graph:
    """A tile says which of two others run."""
    flag, value = il.Tensor("flag", (2,), when), il.Tensor("value", (2,), il.fp32)
    other = il.Tensor("other", (2,), il.int32)
    own, all_ = (I.block(1),), (ALL,)
    ops = [Op("says", "k", (1,), (), (Access("out", writes, all_),))]
    if before:
        ops.append(Op("sets", "k", (2,), (), (Access("out", "value", own),)))
    runs = Op("runs", "k", (2,), (Access("flag", "flag", own),), (Access("out", "value", own),), when="flag")
    inputs = [*(["flag"] if writes != "flag" else []), *(["value"] if given else [])]
    return il.Graph("two", (flag, value, other), (*ops, runs), tuple(inputs), ("value",))


def test_what_spawns_nothing_and_what_leaves_more_than_zeros_is_refused() -> None:
    spawns = Spawns.from_plan(plan(graph_of()))
    assert spawns.spawner.tolist() == [-1, 0, 0]
    for graph, says in (
        (graph_of(il.fp32), "let each tile read one element of an int32 tensor"),
        (graph_of(writes="other"), r"nobody spawns op 'runs', tile \(0\): no op before writes element \[0\] of 'flag'"),
        (graph_of(before=True), r"op 'runs', tile \(0\) may not run, and then leaves 0 in 'value'"),
        (graph_of(given=True), r"op 'runs', tile \(0\) may not run, and then leaves 0 in 'value'"),
    ):
        with pytest.raises(SpawnError, match=says):
            il.verify(plan(graph))
        il.verify(il.build(graph, il.Schedule(3)))  # which any other dispatch runs


def test_parts_of_tiles_are_refused() -> None:
    x, w, out = (il.Tensor(name, (256, 256), il.fp32) for name in ("x", "w", "out"))
    graph = il.Graph("one", (x, w, out), (il.matmul("op", x, w, out),), ("x", "w"), ("out",))
    with pytest.raises(SpawnError, match=r"is a part of a tile.*Whole"):
        il.verify(plan(graph, split=il.SplitK(2)))


def test_when_is_an_argument_that_is_read_and_part_of_the_plans_text() -> None:
    with pytest.raises(ShapeError, match="when='flag', which it does not read"):
        Op("op", "k", (1,), (), (Access("flag", "flag", (ALL,)),), when="flag")
    text = plan().to_json()
    assert il.read_plan(text) == plan()
    with pytest.raises(PlanFormatError, match="has when '', but"):
        il.read_plan(text.replace(',"when":"wanted"', "", 1))


def test_a_tile_that_is_not_wanted_leaves_zeros_under_every_dispatch() -> None:
    graph = replace(plan().graph, outputs=("out", "value"))
    easy = {"centre": np.full(2, 0.5), "width": np.full(2, 10.0)}
    for dispatch in il.Dispatch:
        value = il.ReferenceExecutor(il.build(graph, il.Schedule(3, dispatch))).run(easy)["value"]
        assert np.count_nonzero(value) == 1


def test_the_simulated_machine_takes_what_is_wanted_when_its_spawner_has_ended() -> None:
    made = plan(quadrature(6, 3, 16, 1e-5))
    run = il.ReferenceExecutor(made)
    run.run(Quadrature.from_fields({}, gpu=False).make_inputs(0))
    assert run.trace is not None
    base = made.compute_tile_base()
    ran = np.isin(base[made.items.op] + made.items.tile, base[run.trace.op] + run.trace.tile)
    nothing = np.zeros(len(made.items))
    costs = Costs(compute_item_flops(made) * 1e4, *[nothing] * 4)
    all_, some = (simulate(made, costs, il.H200, ran=which) for which in (None, ran))
    assert (len(all_.op), len(some.op)) == (64, int(ran.sum()))
    assert some.span_ns < all_.span_ns / 2
    of_item = dict(zip(np.flatnonzero(ran).tolist(), range(len(some.op)), strict=True))
    spawner = Spawns.from_plan(made).spawner
    for item, row in of_item.items():
        if spawner[item] >= 0:
            assert some.start_ns[row] >= some.end_ns[of_item[int(spawner[item])]] - il.H200.latencies.post_ns
    assert some.wait_ns[-1] >= some.end_ns[:-1].max() - il.H200.latencies.post_ns
    with pytest.raises(SimulationError, match="ran has 3 entries for a plan of 64 items"):
        simulate(made, costs, il.H200, ran=np.ones(3, np.bool_))


def copies(op: str, reads: str, writes: str, tiles: int = 2, when: str = "", read: object = None) -> Op:
    """An op of which each tile reads one element and writes one, or all of them."""
    own = (I.block(1),)
    of = read if read is not None else own
    accesses = [Access("x", reads, of)] if reads else []
    if when:
        accesses.append(Access("flag", when, own))  # "flag" is the argument, ``when`` the tensor
    out = Access("out", writes, own if tiles > 1 else (ALL,))
    return Op(op, "k", (tiles,), tuple(accesses), (out,), when=when and "flag")


def chain(*ops: Op, outputs: tuple[str, ...]) -> il.Graph:
    """A graph of ops on vectors of two elements, the flags among them of ints."""
    names = dict.fromkeys(access.tensor for op in ops for access in op.accesses)
    flags = {access.tensor for op in ops for access in op.reads if access.arg == op.when}
    tensors = tuple(il.Tensor(name, (2,), il.int32 if name in flags else il.fp32) for name in names)
    return il.Graph("chain", tensors, ops, (), outputs)


def test_predicted_times_of_quadrature_are_near_those_of_a_gpu() -> None:
    """One share of the fp32 rate was fitted to these five times; without it they are 2 to 4 times too low."""
    counted = json.loads((RESULTS / "dispatch-h200.json").read_text())["spawning"]
    rows = measure_rows(il.H200, measure=False)
    assert [(row.dispatch, row.items) for row in rows] == [(each["dispatch"], each["items"]) for each in counted]
    for row, each in zip(rows, counted, strict=True):
        assert row.predicted_us == pytest.approx(each["us"], rel=0.08)


@pytest.mark.parametrize("share", [0, -1, 1.5, "1"])
def test_shares_of_a_rate_lie_between_0_and_1(share: object) -> None:
    with pytest.raises(ParamError, match=r"kernel 'refine' has rate_share .*; use one above 0, up to 1"):
        replace(REFINE, rate_share=share)  # type: ignore[arg-type]


def test_an_item_that_waits_for_spawned_ones_spawns_none() -> None:
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        copies("mid", "value", "more", 1, read=(ALL,)),
        copies("leaf", "", "out", when="more"),
        outputs=("out",),
    )
    says = r"op 'leaf', tile \(0\) is spawned by op 'mid', tile \(0\), which waits for items that may never run"
    with pytest.raises(SpawnError, match=says):
        il.verify(plan(graph))
    il.verify(il.build(graph, il.Schedule(3)))


def test_who_waits_for_an_item_behind_is_behind_too() -> None:
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        copies("first", "value", "a"),
        copies("second", "a", "b"),
        copies("third", "b", "c"),
        copies("free", "", "d"),
        outputs=("c", "d"),
    )
    made = plan(graph)
    spawns = Spawns.from_plan(made)
    names = [[made.graph.ops[int(made.items.op[i])].name for i in some] for some in (spawns.before, spawns.after)]
    assert names == [["says", "free", "free"], ["first", "first", "second", "second", "third", "third"]]
    with pytest.raises(SpawnError, match=r"op 'leaf', tile \(0\) is spawned by op 'third', tile \(0\)"):
        il.verify(plan(chain(*graph.ops, copies("leaf", "", "out", when="c"), outputs=("out", "d"))))


def test_the_last_writer_of_an_element_spawns() -> None:
    graph = chain(
        copies("first", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        outputs=("value",),
    )
    again = replace(graph.ops[0], name="again")
    once = Spawns.from_plan(plan(graph))
    twice = Spawns.from_plan(plan(replace(graph, ops=(graph.ops[0], again, graph.ops[1]))))
    assert once.spawner.tolist() == [-1, 0, 0]
    assert twice.spawner.tolist() == [-1, -1, 1, 1]
    assert twice.children[0].tolist() == []


def test_when_of_several_elements_is_refused() -> None:
    graph = graph_of()
    wide = replace(graph.ops[1], reads=(Access("flag", "flag", (ALL,)),))
    with pytest.raises(SpawnError, match=r"op 'runs' reads flag.*let each tile read one element of an int32 tensor"):
        il.verify(plan(replace(graph, ops=(graph.ops[0], wide))))


def test_a_semaphore_of_spawned_items_and_others_is_refused() -> None:
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        copies("others", "", "other"),
        copies("sum", "value", "total", 1, read=(ALL,)),
        outputs=("total", "other"),
    )
    made = plan(graph, policy={"runs": il.KernelSync()})
    post = made.items.post.copy()
    of = [made.graph.op_index(name) for name in ("runs", "others")]
    shared = int(post[made.items.op == of[0]][0])
    post[made.items.op == of[1]] = shared
    threshold = np.where(made.waits.first == shared, 4, made.waits.threshold)
    bad = replace(made, items=replace(made.items, post=post), waits=replace(made.waits, threshold=threshold))
    il.verify(made)
    with pytest.raises(SpawnError, match=r"op 'runs', tile \(0\) and op 'others', tile \(0\) post one semaphore"):
        il.verify(bad)


def test_a_spawned_item_that_waits_for_a_sibling_under_one_semaphore_is_refused() -> None:
    """All posters of a semaphore count, not only the one that is needed."""
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        copies("reads", "value", "out", when="flag"),
        outputs=("out",),
    )
    with pytest.raises(SpawnError, match=r"op 'reads', tile \(0\) waits for op 'runs', tile \(0\)"):
        il.verify(plan(graph))


def test_a_spawned_item_may_wait_for_all_that_it_is_descended_from() -> None:
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "more", when="flag"),
        copies("children", "", "third", when="more"),
        copies("reads", "more", "out", when="third"),
        outputs=("out",),
    )
    spawns = Spawns.from_plan(plan(graph))
    assert spawns.spawner.tolist() == [-1, 0, 0, 1, 2, 3, 4]
    assert il.verify(plan(graph)).in_sequence


def test_numbers_of_semaphores_do_not_matter() -> None:
    graph = chain(
        copies("says", "", "flag", 1),
        copies("runs", "", "value", when="flag"),
        copies("sum", "value", "total", 1, read=(ALL,)),
        outputs=("total",),
    )
    made = plan(graph)
    items, waits, last = made.items, made.waits, made.semaphores - 1
    post = np.where(items.post < 0, -1, last - items.post)
    first = last - waits.first - (waits.count - 1) * waits.stride
    turned = replace(made, items=replace(items, post=post), waits=replace(waits, first=first))
    il.verify(turned)
    assert 0 in turned.items.post[turned.items.op == 1]
    one, other = Spawns.from_plan(made), Spawns.from_plan(turned)
    assert (one.before.tolist(), one.after.tolist()) == ([0], [3])
    assert (other.before.tolist(), other.after.tolist()) == ([0], [3])


def test_one_element_that_the_first_item_wrote_is_enough_to_refuse_zeros() -> None:
    value, flag = il.Tensor("value", (2,), il.fp32), il.Tensor("flag", (1,), il.int32)
    own, both = (I.block(1),), (I.block(2),)
    ops = (
        Op("sets", "k", (1,), (), (Access("out", "value", own),)),
        Op("says", "k", (1,), (), (Access("out", "flag", own),)),
        Op("runs", "k", (1,), (Access("flag", "flag", own),), (Access("out", "value", both),), when="flag"),
    )
    with pytest.raises(SpawnError, match=r"op 'runs', tile \(0\) may not run, and then leaves 0 in 'value'"):
        il.verify(plan(il.Graph("part", (value, flag), ops, (), ("value",))))
