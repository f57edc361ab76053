"""Faults on a device: each ends in a typed error, and the device stays usable."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import interlace as il
from interlace.core.errors import ConcurrentRunError, HangError, NoDeviceError, TooManyWorkersError

from ..cases import relative_error, strike_posts
from .cases import case, executor


@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket"])
def test_a_missing_post_raises_hang_error_within_3_seconds_and_the_next_run_is_right(name: str) -> None:
    c = case("ffn", 300, "bf16")
    run = executor(name, c.graph)
    inputs = c.inputs(seed=0)
    gold = c.compute_exact(inputs)
    out = c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    run.synchronize()

    victim = 7  # an item of the first op
    semaphore = int(run.plan.items.post[victim])
    strike_posts(run, [victim])
    begin = time.perf_counter()
    run.run(tensors)
    with pytest.raises(HangError) as caught:
        run.synchronize()
    assert time.perf_counter() - begin >= run.options.timeout_s  # no earlier; a busy machine may take longer
    posters = int((run.plan.items.post == semaphore).sum())
    assert caught.value.semaphore == semaphore
    assert caught.value.expected == posters
    assert caught.value.seen == posters - 1
    assert caught.value.producer == run.plan.format_item(victim)
    assert run.plan.graph.ops[int(run.plan.items.op[caught.value.item])].name == "down"
    assert run.plan.format_item(victim) in str(caught.value)

    out.fill_(float("nan"))
    run.run(tensors)
    run.synchronize()
    assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket"])
def test_a_graph_captured_before_a_hang_is_right_after_it(name: str) -> None:
    c = case("ffn", 300, "bf16")
    run, inputs, out = executor(name, c.graph), c.inputs(seed=0), c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    run.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run.run(tensors)
    run._semaphores[int(run.plan.items.post[7])] -= 1  # as if a post were missing
    captured.replay()
    with pytest.raises(HangError):
        run.synchronize()
    for _ in range(2):
        out.fill_(float("nan"))
        captured.replay()
        run.synchronize()
        assert relative_error(out, c.compute_exact(inputs)) < 1e-2


def test_more_static_workers_than_fit_are_refused_before_the_launch() -> None:
    graph = il.workloads.two_copies(4096, 4096, il.bf16, (32, 32))  # workers beyond the items do not count
    run = il.PersistentExecutor(il.build(graph, il.Schedule(132 * 64, il.Dispatch.STATIC)))
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(TooManyWorkersError, match="resident"):
        run.run({graph.inputs[0]: x, graph.outputs[0]: torch.empty_like(x)})


def test_ticket_dispatch_makes_progress_with_more_workers_than_fit() -> None:
    c = case("ffn", 300, "bf16")
    run = il.PersistentExecutor(il.build(c.graph, il.Schedule(132 * 64)))
    inputs, out = c.inputs(0), c.make_poisoned_output()
    run.run({**inputs, c.output: out})
    run.synchronize()
    assert relative_error(out, c.compute_exact(inputs)) < 1e-2


def test_one_instance_on_two_streams_at_once_is_refused() -> None:
    c = case("ffn", 300, "bf16")
    run = executor("ticket", c.graph)
    tensors = {**c.inputs(0), c.output: c.make_poisoned_output()}
    run.run(tensors)
    run.synchronize()
    other = torch.cuda.Stream()  # made first: the device sleeps for half a second only
    torch.cuda._sleep(1_000_000_000)
    run.run(tensors)
    with torch.cuda.stream(other), pytest.raises(ConcurrentRunError, match="second instance"):
        run.run(tensors)
    run.synchronize()


def test_two_instances_on_two_streams_run_side_by_side() -> None:
    c = case("ffn", 300, "bf16")
    inputs = c.inputs(0)
    gold = c.compute_exact(inputs)
    for name in ("static", "ticket", "semaphore_streams"):
        runs = [(executor(name, c.graph), c.make_poisoned_output(), torch.cuda.Stream()) for _ in range(2)]
        for _ in range(50):
            for run, out, stream in runs:
                with torch.cuda.stream(stream):
                    run.run({**inputs, c.output: out})
        for run, out, _ in runs:
            run.synchronize()
            assert relative_error(out, gold) < 1e-2


def test_an_absent_gpu_is_named() -> None:
    c = case("two-copies", 16, "bf16")
    with pytest.raises(NoDeviceError, match="cuda:99"):
        il.SerialExecutor(il.build(c.graph, il.Schedule(4)), il.RunOptions("cuda:99"))


def test_a_trace_has_every_item_on_the_gpu_clock() -> None:
    c = case("ffn", 1024, "bf16")
    run = executor("ticket", c.graph, trace=True)
    run.run({**c.inputs(0), c.output: c.make_poisoned_output()})
    trace = run.read_trace()
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns < trace.end_ns).all()
    assert 0 < trace.span_ns < 100_000_000
    assert len(set(trace.sm.tolist())) > 100
    # No item starts before all items that it waits for have ended.
    plan = run.plan
    for i in np.flatnonzero(np.diff(plan.waits.ptr))[:200]:
        for w in range(plan.waits.ptr[i], plan.waits.ptr[i + 1]):
            first, count, stride = (int(x[w]) for x in (plan.waits.first, plan.waits.count, plan.waits.stride))
            posters = np.isin(plan.items.post, first + stride * np.arange(count))
            assert trace.end_ns[posters].max() <= trace.start_ns[i] + 2000  # posts precede the end stamp
