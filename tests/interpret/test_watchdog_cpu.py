"""The CPU twin of the watchdog: what would hang ends in a typed error, and the next run is right.

The interpreter runs programs one after another, so a wait that is not over at once never will be; it ends
without a clock, and leaves the same record as on a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import CoverageError, DeadlockError, HangError, PlanError, TooManyWorkersError

from ..cases import strike_posts
from .cases import case, executor

CPU = il.RunOptions("cpu")


@pytest.mark.parametrize("victim", [0, 3, 5])
@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket", "ticket-chunked"])
def test_a_missing_post_raises_hang_error_and_the_next_run_is_right(name: str, victim: int) -> None:
    """The post of one tile of the first op is struck from the table."""
    c = case("ffn", 20)
    run, inputs = executor(name, c.graph), c.inputs()
    c.check(c.run(run, inputs), inputs)

    victim = int(np.flatnonzero(run.plan.items.op == 0)[victim])
    semaphore = int(run.plan.items.post[victim])
    strike_posts(run, [victim])
    with pytest.raises(HangError) as caught:
        c.run(run, inputs)
    error, plan = caught.value, run.plan
    posters = int((plan.items.post == semaphore).sum())
    assert (error.semaphore, error.expected, error.seen) == (semaphore, posters, posters - 1)
    assert error.producer == plan.format_item(victim)
    waits = range(plan.waits.ptr[error.item], plan.waits.ptr[error.item + 1])
    first, count, stride = plan.waits.first, plan.waits.count, plan.waits.stride
    awaited = {int(first[w] + stride[w] * i) for w in waits for i in range(count[w])}
    assert semaphore in awaited
    for part in (plan.format_item(error.item), f"semaphore {semaphore}", f"{posters} posts", error.producer):
        assert part in str(error)

    inputs = c.inputs(1)
    c.check(c.run(run, inputs), inputs)


def test_launches_from_before_a_hang_are_right_after_it() -> None:
    """A captured run holds the addresses of counters and tables, as the launches do that were made before."""
    c = case("ffn", 20)
    run, inputs = executor("ticket-chunked", c.graph), c.inputs()
    tensors = {**inputs, c.output: c.make_poisoned_output()}
    launches = run.build_launches(tensors)
    run._semaphores[0] -= 1  # as if a post were missing
    with pytest.raises(HangError):
        run.run(tensors)
    for _ in range(2):
        tensors[c.output].fill_(float("nan"))
        for launch in launches:
            launch.run()
        run.synchronize()
        c.check(tensors[c.output], inputs)
    assert run.build_launches(tensors) is launches


def test_the_first_failed_wait_is_the_one_reported() -> None:
    """Three tiles lose their posts; the item that waits first is named, with the tile that it misses."""
    c = case("ffn", 20)
    run, inputs = executor("ticket", c.graph), c.inputs()
    strike_posts(run, [0, 1, 4])
    with pytest.raises(HangError) as caught:
        c.run(run, inputs)
    assert caught.value.item == 6
    assert run.plan.format_item(6) == "op 'down', tile (0, 0)"
    assert caught.value.producer in {run.plan.format_item(0), run.plan.format_item(1)}


def test_a_gate_names_the_op_that_was_never_launched() -> None:
    c = case("two-copies", 20)
    run = executor("semaphore_streams", c.graph)
    with run.open_stages() as stages, stages["second"]:
        pass
    with pytest.raises(HangError, match="op 'first' saw 0 of 4 thread blocks") as caught:
        run.synchronize()
    assert caught.value.producer == "first"
    inputs = c.inputs()
    c.check(c.run(run, inputs), inputs)


def reverse_plan(plan: il.Plan) -> il.Plan:
    """The same plan with its sequence backwards: consumers before their producers."""
    items, waits = plan.items, plan.waits
    n = len(items)
    back = np.arange(n)[::-1]
    rows = [np.arange(waits.ptr[i], waits.ptr[i + 1]) for i in back]
    order = np.concatenate(rows)
    columns = {name: getattr(items, name)[back].copy() for name in ("op", "tile", "k_lo", "k_hi", "worker", "post")}
    moved = {name: getattr(waits, name)[order].copy() for name in ("first", "count", "stride", "threshold", "k")}
    ptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    return replace(plan, items=type(items)(**columns), waits=type(waits)(ptr=ptr, **moved))


@pytest.mark.parametrize("schedule", [il.Schedule(2), il.Schedule(1, il.Dispatch.STATIC)], ids=["ticket", "static"])
@pytest.mark.parametrize("cls", [il.SerialExecutor, il.SemaphoreStreamsExecutor, il.PersistentExecutor])
def test_a_plan_whose_order_is_not_topological_is_refused(cls: type, schedule: il.Schedule) -> None:
    plan = reverse_plan(il.build(case("ffn", 20).graph, schedule))
    with pytest.raises(DeadlockError, match=r"op 'down'.*waits for op 'up'"):
        cls(plan, CPU)


def test_a_plan_without_posts_is_refused() -> None:
    plan = il.build(case("ffn", 20).graph, il.Schedule(2, policy=il.NoSync()))
    with pytest.raises(CoverageError, match="NoSync"):
        il.PersistentExecutor(plan, CPU)


def test_tiles_of_one_op_that_need_each_other_are_refused() -> None:
    """A scan over rows, where each tile needs the one before, is no op."""
    x, y = il.Tensor("x", (32, 16), il.bf16), il.Tensor("y", (32, 16), il.bf16)
    (i,) = il.axes(1)
    own, before = (i.block(16), il.ALL), ((i - 1).block(16), il.ALL)
    op = il.Kernel("scan").make_op("scan", (2,), {"x": (x, own), "last": (y, before)}, {"y": (y, own)})
    graph = il.Graph("scan", (x, y), (op,), ("x", "y"), ("y",))
    with pytest.raises(il.errors.IntraOpRaceError, match=r"tile \(0\) writes y\[0:16, 0:16\].*tile \(1\) reads"):
        il.build(graph, il.Schedule(1))


@pytest.mark.parametrize("workers", [2, 132])
def test_more_static_workers_than_one_are_refused(workers: int) -> None:
    plan = il.build(case("ffn", 20).graph, il.Schedule(workers, il.Dispatch.STATIC))
    busy = min(workers, len(plan.items))  # those beyond the items are not launched
    with pytest.raises(TooManyWorkersError, match=f"so {busy} static workers"):
        il.PersistentExecutor(plan, CPU)


def test_ticket_dispatch_takes_more_workers_than_items() -> None:
    c = case("ffn", 20)
    run = il.PersistentExecutor(il.build(c.graph, il.Schedule(32)), CPU)
    for seed in range(2):
        inputs = c.inputs(seed)
        c.check(c.run(run, inputs), inputs)


def test_static_dispatch_excludes_dependent_launch() -> None:
    plan = il.build(case("ffn", 20).graph, il.Schedule(1, il.Dispatch.STATIC))
    with pytest.raises(PlanError, match="ticket dispatch"):
        il.PersistentExecutor(plan, il.RunOptions("cpu", dependent_launch=True))
