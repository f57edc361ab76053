"""Which items were stolen, as the reference executor and the simulated machine run them."""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace.planner.predict import predict
from interlace.trace.events import Trace
from interlace.trace.steals import steals

WORKERS = 3


def plan(dispatch: il.Dispatch) -> il.Plan:
    tile = il.MatmulTile(16, 16, 16)
    shape = il.workloads.FFNShape(64, 80, il.Activation.RELU, False)
    return il.build(il.workloads.ffn(32, shape, il.fp32, tile, tile), il.Choices(WORKERS, dispatch))


def stolen(made: il.Plan, seed: int) -> tuple[Trace, np.ndarray]:
    run = il.ReferenceExecutor(made, seed=seed)
    random = np.random.default_rng(seed)
    inputs = {name: random.standard_normal(made.graph.tensor(name).shape) for name in made.graph.inputs}
    out = run.run(inputs)["out"]
    right = np.maximum(inputs["x"] @ inputs["w_up"].T, 0) @ inputs["w_down"].T
    assert np.linalg.norm(out - right) < 1e-12 * np.linalg.norm(right)
    assert run.trace is not None
    return run.trace, steals(made.items.worker, run.trace)


def test_items_are_stolen_by_whoever_has_none_left_and_all_are_right() -> None:
    made, count = plan(il.Dispatch.STEALING), 0
    owner = made.items.worker
    for seed in range(10):
        trace, found = stolen(made, seed)
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
        assert stolen(plan(dispatch), 0)[1].shape == (0, 3)


def test_the_simulated_machine_lets_workers_steal_too() -> None:
    made = plan(il.Dispatch.STEALING)
    uneven = np.where(np.arange(len(made.items)) < 2, 0, 2)  # worker 0 has two items, worker 2 all others
    items = il.Plan.from_json(made.to_json()).items
    lists = type(items)(items.op, items.tile, items.k_lo, items.k_hi, uneven, items.post)
    times = {}
    for dispatch in (il.Dispatch.STATIC, il.Dispatch.STEALING):
        one = il.Plan(made.graph, dispatch, WORKERS, made.semaphores, lists, made.waits)
        trace = predict(one, il.H200).trace
        times[dispatch] = trace.span_ns, len(steals(one.items.worker, trace))
    assert times[il.Dispatch.STATIC][1] == 0 < times[il.Dispatch.STEALING][1]
    assert times[il.Dispatch.STEALING][0] < times[il.Dispatch.STATIC][0]
