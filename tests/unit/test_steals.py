"""Stolen items, as the reference executor and the simulated machine run them."""

from __future__ import annotations

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import ArgumentError
from interlace.planner.predict import predict
from interlace.sim.steal import choose_victim as chosen_victim
from interlace.trace.events import Trace, find_steals

WORKERS = 3


def plan(dispatch: il.Dispatch) -> il.Plan:
    tile = il.MatmulTile(16, 16, 16)
    shape = il.workloads.FFNShape(64, 80, il.Activation.RELU, False)
    return il.build(il.workloads.ffn(32, shape, il.fp32, tile, tile), il.Schedule(WORKERS, dispatch))


def run_stealing(made: il.Plan, seed: int) -> tuple[Trace, np.ndarray]:
    run = il.ReferenceExecutor(made, seed=seed)
    random = np.random.default_rng(seed)
    inputs = {name: random.standard_normal(made.graph.tensor(name).shape) for name in made.graph.inputs}
    out = run.run(inputs)["out"]
    right = np.maximum(inputs["x"] @ inputs["w_up"].T, 0) @ inputs["w_down"].T
    assert np.linalg.norm(out - right) < 1e-12 * np.linalg.norm(right)
    assert run.trace is not None
    return run.trace, find_steals(made.items.worker, run.trace)


def test_items_are_stolen_by_whoever_has_none_left_and_all_are_right() -> None:
    made, count = plan(il.Dispatch.STEALING), 0
    owner = made.items.worker
    for seed in range(10):
        trace, found = run_stealing(made, seed)
        assert {*found[:, 0].tolist()} == {*np.flatnonzero(trace.worker != owner).tolist()}
        for item, thief, victim in found.tolist():
            assert (trace.worker[item], owner[item]) == (thief, victim)
            mine = np.flatnonzero((owner == thief) & (trace.worker == thief))
            assert (trace.end_ns[mine] <= trace.wait_ns[item]).all()
        assert (np.diff(trace.wait_ns[found[:, 0]]) >= 0).all()
        count += len(found)
    assert count > 10


def test_nothing_is_stolen_under_another_dispatch() -> None:
    for dispatch in (d for d in il.Dispatch if d is not il.Dispatch.STEALING):
        assert run_stealing(plan(dispatch), 0)[1].shape == (0, 3)


def test_the_simulated_machine_lets_workers_steal_too() -> None:
    made = plan(il.Dispatch.STEALING)
    uneven = np.where(np.arange(len(made.items)) < 2, 0, 2)  # worker 0 has two items, worker 2 all others
    items = il.read_plan(made.to_json()).items
    lists = type(items)(items.op, items.tile, items.k_lo, items.k_hi, uneven, items.post)
    times = {}
    for dispatch in (il.Dispatch.STATIC, il.Dispatch.STEALING):
        one = il.Plan(made.graph, dispatch, WORKERS, made.semaphores, lists, made.waits)
        trace = predict(one, il.H200).trace
        times[dispatch] = trace.span_ns, len(find_steals(one.items.worker, trace))
    assert times[il.Dispatch.STATIC][1] == 0 < times[il.Dispatch.STEALING][1]
    assert times[il.Dispatch.STEALING][0] < times[il.Dispatch.STATIC][0]


def test_victims_have_items_left_and_are_next_or_any() -> None:
    following, ends = np.array([0, 0, 8]), np.array([0, 8, 8])
    assert chosen_victim(following, ends, 0, False, 0) == chosen_victim(following, ends, 2, False, 0) == 1
    assert chosen_victim(ends, ends, 0, True, 0) == 0
    chosen = {chosen_victim(np.zeros(9, int), np.arange(9), 4, True, tries) for tries in range(99)}
    assert chosen == {1, 2, 3, 5, 6, 7, 8}


def test_thieves_that_take_nothing_or_from_nobody_are_refused() -> None:
    assert str(il.Stealing(None, il.Victim.RANDOM)) == "half of a random list"
    assert str(il.Stealing(4)) == "at most 4 items of the next list"
    with pytest.raises(ArgumentError, match="most is 0; take at least one item at a time, None for half"):
        il.Stealing(0)
    with pytest.raises(ArgumentError, match=r"victim is 'random'; write victim=il.Victim.RANDOM"):
        il.Stealing(1, "random")  # type: ignore[arg-type]
