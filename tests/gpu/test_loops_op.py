"""Kernels of loops as ops of graphs: every executor that takes them, against float64."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.core.errors import GraphError, HangError
from interlace.executors.footprint import check_footprint

from ..cases import Case, relative_error, strike_posts
from ..loops_graphs import matmuls, norm_chain_sum

GRAPHS = {"norm-chain-sum": norm_chain_sum, "matmuls": matmuls}
#: Relative errors of fp32 arithmetic, and of bf16 matmuls with roundings between.
LIMITS = {"norm-chain-sum": 1e-6, "matmuls": 8e-3}
EXECUTORS = {
    "serial": (il.SerialExecutor, il.Schedule(132)),
    "pdl": (il.PdlExecutor, il.Schedule(132)),
    "cuda_graph": (il.CudaGraphExecutor, il.Schedule(132)),
    "tiles": (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.TileSync())),
    "rows": (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.RowSync(), order=il.Serpentine())),
    "kernels": (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.KernelSync())),
}


def case(graph: str, m: int) -> Case:
    return Case(*GRAPHS[graph](m), "cuda")


def executor(name: str, graph: il.Graph, **options: object) -> il.SerialExecutor:
    cls, schedule = EXECUTORS[name]
    return cls(il.build(graph, schedule), il.RunOptions(**options))


@pytest.mark.parametrize("m", [1, 17, 300, 2048])
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_executor_matches_float64(graph: str, m: int) -> None:
    c = case(graph, m)
    for name in EXECUTORS:
        run = executor(name, c.graph)
        for seed in range(3):  # later runs count on from earlier ones
            inputs, out = c.inputs(seed), c.make_poisoned_output()
            for hidden in c.graph.intermediates:
                run.get_intermediate(hidden).fill_(float("nan"))
            run.run({**inputs, c.output: out})
            run.synchronize()
            error = relative_error(out, c.compute_exact(inputs))
            assert error <= LIMITS[graph], f"{name}: {error:.2e}"


@pytest.mark.parametrize("name", ["tiles", "rows"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_items_wait_for_posts_of_their_own_run_when_counters_wrap(graph: str, name: str) -> None:
    """Counters are set as after runs with (run + 1) * threshold just below, at and above a wrap of 32 bits."""
    c = case(graph, 700)
    run = executor(name, c.graph, jitter_s=20e-6)
    inputs, out = c.inputs(0), c.make_poisoned_output()
    run.run({**inputs, c.output: out})
    run.synchronize()
    posts, starts = run._semaphores.clone().long(), run._counters.clone()
    for limit in (2**31, 2**32):
        first = int(limit // int(posts.max())) - 2
        run._semaphores.copy_(((posts * first + 2**31) % 2**32 - 2**31).int())
        run._counters.copy_(starts * first)
        for _ in range(4):
            for hidden in c.graph.intermediates:
                run.get_intermediate(hidden).fill_(float("nan"))
            out.fill_(float("nan"))
            run.run({**inputs, c.output: out})
            run.synchronize()
            assert relative_error(out, c.compute_exact(inputs)) <= LIMITS[graph]


@pytest.mark.parametrize("name", ["tiles", "rows"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_300_runs_with_random_delays_never_differ(graph: str, name: str) -> None:
    c = case(graph, 700)
    inputs, expected, out = c.inputs(0), c.make_poisoned_output(), c.make_poisoned_output()
    executor("serial", c.graph).run({**inputs, c.output: expected})
    run = executor(name, c.graph, jitter_s=20e-6)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(300):
        out.fill_(float("nan"))
        for hidden in c.graph.intermediates:
            run.get_intermediate(hidden).fill_(float("nan"))
        run.run({**inputs, c.output: out})
        wrong += (out != expected).sum()
    run.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("graph", GRAPHS)
def test_blocks_touch_what_their_loops_say(graph: str) -> None:
    c = case(graph, 300)
    for op in c.graph.ops:
        check_footprint(c.graph, op.name, device="cuda")


def test_a_captured_run_is_replayed() -> None:
    c = case("norm-chain-sum", 300)
    inputs, out = c.inputs(0), c.make_poisoned_output()
    run = executor("tiles", c.graph)
    run.run({**inputs, c.output: out})
    run.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.run({**inputs, c.output: out})
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
    run.synchronize()
    assert relative_error(out, c.compute_exact(inputs)) <= LIMITS["norm-chain-sum"]


def test_a_missing_post_is_a_hang_error_that_names_the_tile() -> None:
    c = case("norm-chain-sum", 300)
    run = executor("tiles", c.graph, timeout_s=0.2)
    inputs, out = c.inputs(0), c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    run.synchronize()
    victim = 7  # an item of the first op
    strike_posts(run, [victim])
    run.run(tensors)
    with pytest.raises(HangError) as caught:
        run.synchronize()
    assert caught.value.producer == run.plan.format_item(victim)
    out.fill_(float("nan"))
    run.run(tensors)
    run.synchronize()
    assert relative_error(out, c.compute_exact(inputs)) <= LIMITS["norm-chain-sum"]


def test_an_output_in_the_memory_of_an_input_is_refused_before_the_launch() -> None:
    c = case("matmuls", 300)
    run, inputs, out = executor("tiles", c.graph), c.inputs(0), c.make_poisoned_output()
    for shared in ({"out": inputs["x"]}, {"out": out, "biased": out}, {"out": run.get_intermediate("copied")}):
        with pytest.raises(GraphError, match="share memory, and op"):
            run.run({**inputs, **shared})


def test_a_trace_has_every_item() -> None:
    c = case("norm-chain-sum", 2048)
    run = executor("tiles", c.graph, trace=True)
    tensors = {**c.inputs(0), c.output: c.make_poisoned_output()}
    run.run(tensors)  # compiles the gates
    run.run(tensors)
    trace = run.read_trace()
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns <= trace.end_ns).all()
    assert 0 < trace.span_ns < 100_000_000
    assert len(set(trace.sm.tolist())) > 100


def test_one_launch_for_all_is_refused() -> None:
    c = case("norm-chain-sum", 300)
    run = il.PersistentExecutor(il.build(c.graph, il.Schedule(132)))
    with pytest.raises(GraphError, match="CUDA C\\+\\+ with a launch of its own"):
        run.run({**c.inputs(0), c.output: c.make_poisoned_output()})


@pytest.mark.gpus(2)
def test_the_same_ops_run_on_another_gpu() -> None:
    graph, answer = norm_chain_sum(300)
    plan = il.build(graph, il.Schedule(132, policy=il.TileSync()))
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        c = Case(graph, answer, device)
        run = il.SemaphoreStreamsExecutor(plan, il.RunOptions(device))
        inputs, out = c.inputs(0), c.make_poisoned_output()
        run.run({**inputs, c.output: out})
        run.synchronize()
        assert relative_error(out, c.compute_exact(inputs)) <= LIMITS["norm-chain-sum"]
