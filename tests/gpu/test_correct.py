"""Every executor computes the right thing, for every graph, size and dtype, run after run."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.core.errors import CoverageError

from ..cases import GRAPHS, relative_error
from .cases import EXECUTORS, case, executor


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("m", [1, 16, 17, 64, 128, 300, 1024, 2048])
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_executor_matches_float64_as_well_as_unfused_pytorch(graph: str, m: int, dtype: str) -> None:
    c = case(graph, m, dtype)
    inputs = c.inputs(seed=m)
    gold = c.compute_exact(inputs)
    unfused = relative_error(c.answer(inputs), gold)
    for name in EXECUTORS:
        run = executor(name, c.graph)
        for _ in range(3):  # later runs count on from earlier ones
            out = c.make_poisoned_output()
            run.run({**inputs, c.output: out})
        run.synchronize()
        error = relative_error(out, gold)
        assert error <= 1.5 * unfused, f"{name}: {error:.2e}, unfused {unfused:.2e}"


@pytest.mark.parametrize("dispatch", il.PersistentExecutor.dispatches)
def test_one_workers_order_is_kept_where_a_proof_may_rest_on_it(dispatch: il.Dispatch) -> None:
    c = case("ffn", 64, "bf16")
    proof = il.verify(il.build(c.graph, il.Schedule(1, dispatch, policy=il.NoSync())))
    for cls in (il.SerialExecutor, il.CudaGraphExecutor, il.PdlExecutor, il.PersistentExecutor):
        run = cls(proof, il.RunOptions(timeout_s=10.0))
        for seed in range(3):
            inputs, out = c.inputs(seed), c.make_poisoned_output()
            run.get_intermediate(c.graph.intermediates[0]).fill_(float("nan"))
            run.run({**inputs, c.output: out})
            run.synchronize()
            assert relative_error(out, c.compute_exact(inputs)) < 1e-2
    for cls in (il.SemaphoreStreamsExecutor, il.MegakernelExecutor):
        with pytest.raises(CoverageError, match="keeps no such order"):
            cls(proof)


@pytest.mark.parametrize("name", ["serial-split", "semaphore_streams", "static-split", "ticket-dependent"])
@pytest.mark.parametrize("graph", ["ffn", "gated-ffn"])
def test_back_to_back_runs_on_changing_inputs_do_not_mix(graph: str, name: str) -> None:
    """No host synchronisation between runs: the next may not overwrite what the last still reads."""
    c = case(graph, 128, "bf16")
    run = executor(name, c.graph)
    sets = [c.inputs(seed) for seed in range(4)]
    outs = [[c.make_poisoned_output() for _ in sets] for _ in range(25)]
    for row in outs:
        for inputs, out in zip(sets, row, strict=True):
            run.run({**inputs, c.output: out})
    run.synchronize()
    golds = [c.compute_exact(inputs) for inputs in sets]
    for row in outs:
        for out, gold in zip(row, golds, strict=True):
            assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket", "ticket-dependent"])
@pytest.mark.parametrize("graph", ["two-copies", "ffn"])
def test_1000_runs_with_random_delays_never_differ(graph: str, name: str) -> None:
    """Delays of up to 20 us around every wait and post; results are bitwise those of the serial executor."""
    c = case(graph, 300, "bf16")
    inputs = c.inputs(seed=0)
    expected = c.make_poisoned_output()
    serial = executor("serial-split" if name == "ticket-dependent" else "serial", c.graph)
    if name == "ticket-dependent":
        serial = executor("pdl", c.graph)  # the same split, so the same sums
    serial.run({**inputs, c.output: expected})
    run = executor(name, c.graph, jitter_s=20e-6)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    hidden = run.get_intermediate(c.graph.intermediates[0])
    out = c.make_poisoned_output()
    for _ in range(1000):
        out.fill_(float("nan"))
        hidden.fill_(float("nan"))
        run.run({**inputs, c.output: out})
        wrong += (out != expected).sum()
    run.synchronize()
    assert int(wrong) == 0


@pytest.mark.parametrize("name", list(EXECUTORS))
def test_a_captured_run_can_be_replayed_any_number_of_times(name: str) -> None:
    c = case("ffn", 64, "bf16")
    run = executor(name, c.graph)
    inputs = c.inputs(seed=0)
    out = c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    run.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.run(tensors)
        run.run(tensors)
    for seed in range(5):
        for k, v in c.inputs(seed).items():
            inputs[k].copy_(v)
        gold = c.compute_exact(inputs)
        for _ in range(20):
            out.fill_(float("nan"))
            graph.replay()
        torch.cuda.synchronize()
        assert relative_error(out, gold) < 1e-2


@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket"])
def test_semaphores_survive_2_to_the_31_posts(name: str) -> None:
    """Counters are set as after runs r with (r + 1) * threshold just below, at and above a wrap of 32 bits."""
    c = case("ffn", 300, "bf16")
    run = executor(name, c.graph)
    inputs = c.inputs(seed=0)
    gold = c.compute_exact(inputs)
    out = c.make_poisoned_output()
    run.run({**inputs, c.output: out})
    run.synchronize()
    posts = run._semaphores.clone().long()  # one run's worth
    starts = run._counters.clone()
    for limit in (2**31, 2**32):
        first = int(limit // int(posts.max())) - 2
        run._semaphores.copy_(((posts * first + 2**31) % 2**32 - 2**31).int())
        run._counters.copy_(starts * first)
        for _ in range(4):
            out.fill_(float("nan"))
            run.run({**inputs, c.output: out})
            run.synchronize()
            assert relative_error(out, gold) < 1e-2
