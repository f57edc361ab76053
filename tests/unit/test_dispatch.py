"""Dispatch of items of unequal cost: their costs, and the simulated machine's times of each dispatch."""

from __future__ import annotations

import numpy as np
import pytest

import interlace as il
from interlace.bench.dispatch import COSTS, DispatchRow, generate_costs_ns, measure_rows
from interlace.core.errors import ArgumentError, ShapeError
from interlace.kernels.spin import spin

from .commands import fail, succeed
from .gpus import A100

ITEMS, WORKERS = 4096, il.H200.sms


@pytest.mark.parametrize("kind", COSTS)
def test_items_cost_as_much_in_the_mean_whatever_their_costs(kind: str) -> None:
    ns = generate_costs_ns(kind, ITEMS, WORKERS)
    assert (ns.dtype, len(ns)) == (np.int32, ITEMS)
    assert ns.mean() == pytest.approx(20_000, rel=1e-4)
    assert ns.min() > 0


def test_costs_are_as_they_are_called() -> None:
    share = ITEMS * 20_000 / WORKERS
    linear, zipf, giant = (generate_costs_ns(kind, ITEMS, WORKERS) for kind in ("linear", "zipf", "giant"))
    assert np.ptp(generate_costs_ns("uniform", ITEMS, WORKERS)) == 0
    assert linear[-1] == pytest.approx(2 * 20_000, rel=1e-3)
    assert linear[99] / linear[9] == pytest.approx(10, rel=0.05)
    ranked = np.sort(zipf)[::-1]
    assert ranked[0] == pytest.approx(share / 20, rel=1e-3)
    assert ranked[1999] / ranked[3999] == pytest.approx((2000 / 4000) ** -1.2, rel=1e-3)
    assert (zipf != ranked).any()
    assert (giant[ITEMS // 2], np.ptp(np.delete(giant, ITEMS // 2))) == (pytest.approx(share, rel=0.01), 0)


@pytest.mark.parametrize("items", [1, 2, 100, 132, 133, 1319, 1321])
@pytest.mark.parametrize("kind", COSTS)
def test_few_items_have_costs_too(kind: str, items: int) -> None:
    assert (generate_costs_ns(kind, items, WORKERS) > 0).all()
    assert (generate_costs_ns(kind, items, 1) > 0).all()


def select_rows(kind: str, told: list[DispatchRow]) -> dict[tuple[str, str], DispatchRow]:
    return {(row.executor, row.dispatch): row for row in told if row.costs == kind}


def test_the_machine_tells_what_each_dispatch_is_good_for() -> None:
    told = measure_rows(il.H200, ITEMS, measure=False)
    assert len(told) == 4 * 12
    ideal_us = ITEMS * 20.0 / WORKERS
    assert all(row.us is None and row.ideal_us == pytest.approx(ideal_us, rel=1e-3) for row in told)
    assert all(row.busy == pytest.approx(row.ideal_us / row.predicted_us, rel=1e-3) for row in told)
    uniform, zipf, giant = (select_rows(kind, told) for kind in ("uniform", "zipf", "giant"))
    static, ticket = ("persistent", "static"), ("persistent", "ticket")
    fastest = min(row.predicted_us for row in uniform.values())
    assert uniform[static].predicted_us <= 1.01 * fastest
    assert uniform[static].overhead_ns == pytest.approx(0.0, abs=1.0)
    assert uniform[ticket].overhead_ns == pytest.approx(il.H200.latencies.ticket_ns, rel=0.05)
    assert uniform[static].launch_us == pytest.approx(0.0, abs=1e-3)
    assert [(row.overhead_ns, row.launch_us) for row in zipf.values()] == [(None, None)] * 12
    assert zipf["one_launch", "ticket"].predicted_us < 1.06 * ideal_us < 1.2 * ideal_us < zipf[static].predicted_us
    thieves = [name for _, name in zipf if name.startswith("stealing")]
    assert len(thieves) == 5
    for dispatch in (*thieves, "hybrid", "queue", "dispatcher"):
        assert zipf["one_launch", dispatch].predicted_us == pytest.approx(zipf[ticket].predicted_us, rel=0.02)
        assert giant["one_launch", dispatch].predicted_us == pytest.approx(1.5 * ideal_us, rel=0.05)
    # Whoever has the giant has a whole list besides, or begins it when half of the work is done.
    assert giant[static].predicted_us == pytest.approx(2 * ideal_us, rel=0.05)
    assert giant[ticket].predicted_us == pytest.approx(1.5 * ideal_us, rel=0.05)


def test_executors_that_a_device_lacks_are_left_out() -> None:
    assert {row.executor for row in measure_rows(A100, 200, measure=False)} == {"persistent"}


def test_items_give_back_what_they_were_told() -> None:
    ns, out = (il.Tensor(name, (40,), il.int32) for name in ("ns", "out"))
    graph = il.Graph("spin", (ns, out), (spin("spin", ns, out),), ("ns",), ("out",))
    told = np.arange(40)
    assert (il.ReferenceExecutor(il.build(graph, il.Schedule(4)), seed=0).run({"ns": told})["out"] == told).all()
    with pytest.raises(ShapeError, match="both must be int32 vectors of one length"):
        spin("spin", ns, il.Tensor("out", (41,), il.int32))


def test_what_has_no_costs_is_refused() -> None:
    with pytest.raises(ArgumentError, match="normal costs of 3 items on 2 workers; use one of uniform, linear, zipf"):
        generate_costs_ns("normal", 3, 2)
    with pytest.raises(ArgumentError, match="uniform costs of 0 items"):
        generate_costs_ns("uniform", 0, 2)


def test_the_command_predicts_where_there_is_no_gpu_and_records_nothing() -> None:
    pytest.importorskip("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    shown = " ".join(succeed("bench", "dispatch", "--items", 264).split())
    assert "264 items on NVIDIA H200, predicted, nothing ran" in shown
    assert "giant" in shown
    assert "there is no CUDA GPU here" in fail(2, "bench", "dispatch", "--out", "r.json")
    assert "65536" in fail(2, "bench", "dispatch", "--items", 1 << 20)
