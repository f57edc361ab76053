"""Who spawns which item follows from the graph; plans under which a spawned item could wait for ever are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import PlanFormatError, ShapeError, SimulationError, SpawnError
from interlace.graph.access import ALL, Access, axes
from interlace.graph.op import Op
from interlace.kernels.quadrature import exact
from interlace.plan.spawns import Spawns, cleared
from interlace.sim.machine import Costs, item_flops, simulate
from interlace.workloads import Quadrature, quadrature

(I,) = axes(1)
LEVELS = 4


def plan(graph: il.Graph | None = None, workers: int = 3, **choices: object) -> il.Plan:
    return il.build(graph or quadrature(LEVELS, 2, 8, 1e-4), il.Choices(workers, il.Dispatch.SPAWN, **choices))


def inputs(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"centre": random.uniform(0, 1, 2), "width": 10 ** random.uniform(-2, 0, 2)}


def test_halves_are_spawned_by_their_interval_and_the_sum_runs_behind() -> None:
    spawns = Spawns.of(plan())
    assert spawns.spawner.tolist() == [-1, *((n - 1) // 2 for n in range(1, 15)), -1]
    assert spawns.element.tolist() == [-1, *range(1, 15), -1]
    assert [spawns.children[n].tolist() for n in (0, 6, 7, 15)] == [[1, 2], [13, 14], [], []]
    assert (spawns.before.tolist(), spawns.behind.tolist(), spawns.capacity) == ([0], [15], 15)
    assert cleared(plan().graph) == ("value", "wanted")


def test_a_graph_without_spawned_tiles_runs_before() -> None:
    spawns = Spawns.of(plan(il.workloads.two_copies(64, 64, il.fp32)))
    assert len(spawns.before) == spawns.capacity == len(spawns.spawner)
    assert not len(spawns.behind)


@pytest.mark.parametrize("seed", range(4))
def test_only_what_is_wanted_runs_and_the_result_is_that_of_any_dispatch(seed: int) -> None:
    given = inputs(seed)
    ticket = il.ReferenceExecutor(il.build(plan().graph, il.Choices(3)))
    right = ticket.run(given)["out"]
    wanted = int(ticket._memory["wanted"][1:].sum())
    for steps in (None, 0, 1):
        run = il.ReferenceExecutor(plan(), seed=steps, first_run=2**31 - 1)
        for _ in range(3):
            assert run.run(given)["out"] == right
            assert run.trace is not None
            assert len(run.trace.op) == 2 + wanted
    assert ticket.trace is not None
    assert len(ticket.trace.op) == 16


def test_the_integral_is_as_exact_as_its_tolerance() -> None:
    graph = quadrature(9, 2, 16, 1e-6)
    out = il.ReferenceExecutor(plan(graph)).run(inputs(0))["out"][0]
    assert abs(out - exact(*inputs(0).values())) < 1e-5
    with pytest.raises(ShapeError, match="level 20; use 0 to 19"):
        Quadrature(levels=21, peaks=1, points=8).graph(il.H200)


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
    spawns = Spawns.of(plan(graph_of()))
    assert spawns.spawner.tolist() == [-1, 0, 0]
    for graph, says in (
        (graph_of(il.fp32), "let each tile read one element of an int32 tensor"),
        (graph_of(writes="other"), r"nobody spawns op 'runs', tile \(0\): no op before writes element \[0\] of 'flag'"),
        (graph_of(before=True), r"op 'runs', tile \(0\) may not run, and then leaves 0 in 'value'"),
        (graph_of(given=True), r"op 'runs', tile \(0\) may not run, and then leaves 0 in 'value'"),
    ):
        with pytest.raises(SpawnError, match=says):
            il.verify(plan(graph))
        il.verify(il.build(graph, il.Choices(3)))  # which any other dispatch runs


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
        value = il.ReferenceExecutor(il.build(graph, il.Choices(3, dispatch))).run(easy)["value"]
        assert np.count_nonzero(value) == 1


def test_the_simulated_machine_takes_what_is_wanted_when_its_spawner_has_ended() -> None:
    made = plan(quadrature(6, 3, 16, 1e-5))
    run = il.ReferenceExecutor(made)
    run.run(Quadrature.of({}, gpu=False).inputs(0))
    assert run.trace is not None
    base = made.tile_base()
    ran = np.isin(base[made.items.op] + made.items.tile, base[run.trace.op] + run.trace.tile)
    nothing = np.zeros(len(made.items))
    costs = Costs(item_flops(made) * 1e4, *[nothing] * 4)
    all_, some = (simulate(made, costs, il.H200, ran=which) for which in (None, ran))
    assert (len(all_.op), len(some.op)) == (64, int(ran.sum()))
    assert some.span_ns < all_.span_ns / 2
    of_item = dict(zip(np.flatnonzero(ran).tolist(), range(len(some.op)), strict=True))
    spawner = Spawns.of(made).spawner
    for item, row in of_item.items():
        if spawner[item] >= 0:
            assert some.start_ns[row] >= some.end_ns[of_item[int(spawner[item])]] - il.H200.latencies.post_ns
    assert some.wait_ns[-1] >= some.end_ns[:-1].max() - il.H200.latencies.post_ns
    with pytest.raises(SimulationError, match="ran has 3 entries for a plan of 64 items"):
        simulate(made, costs, il.H200, ran=np.ones(3, np.bool_))
