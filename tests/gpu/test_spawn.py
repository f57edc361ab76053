"""Items that spawn items: what is wanted runs, run after run, whichever way the launch ends; what overflows is told."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import interlace as il
from interlace.core.errors import QueueOverflowError, TooManyWorkersError
from interlace.megakernel.options import Termination
from interlace.workloads import Quadrature

PROBLEM = Quadrature.from_fields({}, gpu=True)
GRAPH = PROBLEM.build_graph(il.H200)
#: Nothing but the whole interval is wanted, and what it is worth.
EASY = (torch.full((PROBLEM.peaks,), 0.5), torch.full((PROBLEM.peaks,), 10.0))
WORTH = PROBLEM.peaks * 2 * float(np.arctan(0.05))


def make_executor(
    workers: int = 132, dispatch: il.Dispatch = il.Dispatch.SPAWN, **options: object
) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(il.build(GRAPH, il.Schedule(workers, dispatch)), il.RunOptions(**options))


def make_inputs(seed: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value).cuda() for name, value in PROBLEM.make_inputs(seed).items()}


@cache
def compute_expected(seed: int) -> torch.Tensor:
    out = torch.empty(1, device="cuda")
    run = make_executor(dispatch=il.Dispatch.TICKET)
    run.run({**make_inputs(seed), "out": out})
    run.synchronize()
    inputs = {name: value.astype(np.float64) for name, value in PROBLEM.make_inputs(seed).items()}
    exact = float(PROBLEM.run_dense(np, inputs)["out"][0])
    assert abs(out.item() - exact) <= 1e-4 * abs(exact)
    return out


@pytest.mark.parametrize("termination", Termination)
@pytest.mark.parametrize(("workers", "jitter_s"), [(132, 0.0), (132, 3e-6), (3, 3e-6), (1, 0.0)])
def test_runs_back_to_back_give_the_bits_of_ticket_dispatch(
    workers: int, jitter_s: float, termination: Termination
) -> None:
    """10,000 where all workers run and nothing delays them."""
    run = make_executor(workers, termination=termination, jitter_s=jitter_s)
    runs = 2500 if workers == 132 and not jitter_s else 100
    for seed in range(4):
        tensors, wrong = make_inputs(seed) | {"out": torch.empty(1, device="cuda")}, torch.zeros(1, device="cuda")
        for _ in range(runs):
            tensors["out"].fill_(float("nan"))
            run.run(tensors)
            wrong += tensors["out"] != compute_expected(seed)
        run.synchronize()
        assert not wrong.item()


@pytest.mark.parametrize("termination", Termination)
def test_a_trace_has_what_is_wanted_alone(termination: Termination) -> None:
    run, out = make_executor(termination=termination, trace=True), torch.empty(1, device="cuda")
    for seed in range(2):
        run.run({**make_inputs(seed), "out": out})
        trace = run.read_trace()
        wanted = int((run.get_intermediate("wanted")[1:] != 0).sum())
        assert len(trace.op) == wanted + 2 < GRAPH.ops[-2].tiles
        assert trace.start_ns[-1] >= trace.start_ns[:-1].max()
        assert abs(wanted + 1 - int(PROBLEM.find_wanted_intervals(seed).sum())) <= 0.02 * wanted


@pytest.mark.parametrize("termination", Termination)
def test_what_finds_no_place_is_an_error_and_the_next_run_is_right(termination: Termination) -> None:
    run, out = make_executor(termination=termination, timeout_s=0.2), torch.empty(1, device="cuda")
    run._memory.counts["capacity"] = 100  # type: ignore[index]
    run.run({**make_inputs(0), "out": out})
    with pytest.raises(QueueOverflowError, match=r"^op 'level\d+', tile .* spawned an item for which"):
        run.synchronize()
    assert not run._memory.values["slots"].any()  # type: ignore[index]
    run.run({**dict(zip(("centre", "width"), (t.cuda() for t in EASY), strict=True)), "out": out})
    run.synchronize()
    assert abs(out.item() - WORTH) <= 1e-5 * WORTH


def test_replays_of_a_captured_run_clear_what_was_wanted_before() -> None:
    run, out, some = make_executor(), torch.empty(1, device="cuda"), make_inputs(0)
    run.run({**some, "out": out})
    run.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run.run({**some, "out": out})
    for seed in (1, 0, 2):
        for name, value in make_inputs(seed).items():
            some[name].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, compute_expected(seed))


def test_more_workers_than_sms_need_no_votes() -> None:
    run, out = make_executor(400), torch.empty(1, device="cuda")
    run.run({**make_inputs(0), "out": out})
    run.synchronize()
    assert torch.equal(out, compute_expected(0))
    with pytest.raises(TooManyWorkersError, match="400 workers"):
        make_executor(400, termination=Termination.VOTES)
