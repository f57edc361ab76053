"""A mixture of experts in one launch on the emulator: right for any routing, and planted faults are reported."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError, LaunchEndedError  # noqa: E402
from interlace.workloads import MoE, moe  # noqa: E402
from interlace.workloads.moe import Routing  # noqa: E402

from ..cases import TORCH, relative_error, strike_posts  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

TOLERANCE = 6e-3  # of bf16, which is rounded to three times

#: Hidden, ffn, experts, chosen, tokens; tile; choices beside one worker; stages of the ring.
CASES = {
    "one token, tickets": (MoE(72, 136, 5, 2, 1), il.MatmulTile(16, 64, 64), {}, 3),
    "two blocks of tokens, static, by rows": (
        MoE(136, 72, 37, 3, 40, Routing.SKEWED, il.fp16),
        il.MatmulTile(16, 64, 128),
        {"dispatch": il.Dispatch.STATIC, "policy": il.RowSync()},
        2,
    ),
    "tall tiles, two warpgroups": (MoE(64, 72, 3, 2, 70), il.MatmulTile(128, 64, 64, num_warps=8), {}, 2),
}


#: Changes of the text, and the kind of the fault that is reported.
FAULTS = {
    "weights of whoever owned the tile before": (
        "    await_rows(launch, item, item.wait_lo, item.wait_hi);\n    int owner",
        "    int owner",
        "race",
    ),
    "an owner that is not there yet": (
        "    await(prefetch_full(stage.slot), stage.phase);\n    const int owner",
        "    const int owner",
        "race",
    ),
}


def launch(name: str, change: tuple[str, str] | None = None, workers: int = 1, **other: Any) -> EmulatedLaunch:
    problem, tile, schedule, stages = CASES[name]
    graph = moe(problem.tokens, problem.hidden, problem.ffn, problem.experts, problem.chosen, problem.dtype, tile=tile)
    return EmulatedLaunch(il.build(graph, il.Schedule(workers, **schedule | other)), stages=stages, change=change)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: launch(name) for name in CASES}
    few = next(iter(CASES))
    # With tickets, workers claim no experts' tile before ``assign`` begins, and a single worker looks ahead only to
    # tiles of ``gather``. Static queues of 8 workers reach the experts.
    lists: dict[str, Any] = {"dispatch": il.Dispatch.STATIC, "workers": 8}
    made |= {name: launch(few, (before, after), **lists) for name, (before, after, _) in FAULTS.items()}
    prepare([*made.values()])
    return made


def run_once(run: EmulatedLaunch, given: dict[str, np.ndarray], seed: int) -> torch.Tensor:
    """Over memory that is poisoned: NaN, and of whole numbers one that is no expert, token or row."""
    graph, run.seed, out = run.plan.graph, seed, run.allocate_tensor("out")
    for value in (*map(run.get_intermediate, graph.intermediates), out):
        value.fill_(float("nan") if value.is_floating_point() else 1 << 28)
    tensors = {n: torch.from_numpy(v).to(TORCH[graph.tensor(n).dtype.name]) for n, v in given.items()}
    run.run({**tensors, "out": out})
    return out


def check(run: EmulatedLaunch, problem: MoE, seed: int) -> None:
    given = {n: v.astype(np.float32) for n, v in problem.make_inputs(seed).items()}
    rounded = {n: torch.from_numpy(v).to(TORCH[run.plan.graph.tensor(n).dtype.name]) for n, v in given.items()}
    exact = problem.run_dense(np, {n: v.double().numpy() for n, v in rounded.items()})["out"]
    out = run_once(run, given, seed)
    assert [str(fault) for fault in run.faults] == []
    assert relative_error(out, torch.from_numpy(exact)) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_any_routing_is_right_run_after_run_and_what_nobody_takes_is_zero(name: str) -> None:
    run, problem = launches()[name], CASES[name][0]
    for seed in range(2):  # another routing under the same plan
        check(run, problem, seed)
        unused = run.get_intermediate("token") < 0
        assert (run.get_intermediate("h")[unused] == 0).all()


def test_a_routing_that_is_never_posted_ends_in_an_error_and_the_next_run_is_right() -> None:
    name = next(iter(CASES))
    run, problem = launches()[name], CASES[name][0]
    strike_posts(run, [int((run.plan.items.op == run.plan.graph.op_index("assign")).argmax())])
    with pytest.raises(HangError, match=r"op 'assign', tile.* never posted"):
        run_once(run, {n: v.astype(np.float32) for n, v in problem.make_inputs(0).items()}, 0)
    run.faults.clear()  # what ran in spite of the missing routing
    check(run, problem, 1)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported(name: str) -> None:
    run, problem = launches()[name], next(iter(CASES.values()))[0]
    given = {n: v.astype(np.float32) for n, v in problem.make_inputs(0).items()}
    for seed in range(3):
        with suppress(HangError, LaunchEndedError):
            run_once(run, given, seed)
        run._reset()
    assert FAULTS[name][2] in {fault.kind for fault in run.faults}
