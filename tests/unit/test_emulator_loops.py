"""Ops of loops in one launch with products and texts on the emulator: right under all schedules, faults are found."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402

from ..cases import relative_error, strike_posts  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.megakernel import search  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402
from ..megakernel_loops import build_copy, chain, compute_exact, inputs_of, library, twice  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SEEDS = range(3)
TOLERANCE = 8e-3  # of bf16, which is rounded to three times
TILE = il.MatmulTile(128, 64, 64, num_warps=8)
_READ = "unsigned char* const tile_ = shared_memory + STAGES"  # of the op behind the other
_AWAITED = f"await_stage(stage);\n      {_READ}"
#: Changes of the text, and the kind of the fault that is reported.
FAULTS = {
    "a loader that counts a stage less": ("      open_load(stage, 1024);\n", "", "deadlock"),
    "a stage handed back before it is read": (
        _AWAITED,
        f"await_stage(stage);\n      release(stage, stage.slot);\n      {_READ}",
        "race",
    ),
    "a stage read before its tiles have come": (
        _AWAITED,
        f"await(prefetch_full(stage.slot), stage.phase);\n      {_READ}",
        "race",
    ),
}


def launch(graph: il.Graph, change: tuple[str, str] | None = None, **schedule) -> EmulatedLaunch:
    return EmulatedLaunch(il.build(graph, il.Schedule(**{"workers": 1, **schedule})), stages=3, change=change)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {
        "chain": launch(chain(131, TILE), policy=il.TileSync()),
        "library": launch(library(), dispatch=il.Dispatch.STATIC),
    }
    made |= {name: launch(twice(16), (before, after)) for name, (before, after, _) in FAULTS.items()}
    late, early = "if (before >= 0) release(stage, before);", "release(stage, stage.slot);"
    made["stored"] = launch(build_copy(), (f"      {late}\n", f"      {early}\n"))
    prepare([*made.values()])
    return made


def test_loops_products_and_texts_pass_data_to_each_other_whatever_the_schedule() -> None:
    run = launches()["chain"]
    inputs = inputs_of(run.plan.graph)
    for seed in SEEDS:
        error = relative_error(run_poisoned(run, inputs, seed), compute_exact(inputs))
        assert [str(fault) for fault in run.faults] == []
        assert error < TOLERANCE


def test_kernels_of_the_library_mean_in_the_launch_what_their_loops_mean() -> None:
    run = launches()["library"]
    graph = run.plan.graph
    given = inputs_of(graph)
    outputs = {name: torch.full_like(run.allocate_tensor(name), float("nan")) for name in graph.outputs}
    run.run({**given, **outputs})
    assert [str(fault) for fault in run.faults] == []
    right = il.ReferenceExecutor(run.plan).run({name: value.double().numpy() for name, value in given.items()})
    for name, value in outputs.items():
        rtol = 1e-2 if value.dtype == torch.bfloat16 else 1e-5
        np.testing.assert_allclose(value.double().numpy(), right[name], rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("op", ["up", "gelu"])
def test_a_missing_post_before_or_behind_loops_ends_in_an_error_and_the_next_run_is_right(op: str) -> None:
    run = launches()["chain"]
    inputs = inputs_of(run.plan.graph)
    strike_posts(run, [int((run.plan.items.op == run.plan.graph.op_index(op)).argmax())])
    with pytest.raises(HangError, match=f"op '{op}', tile.* never posted"):
        run_poisoned(run, inputs, 0)
    run.faults.clear()  # what ran in spite of the missing data
    assert relative_error(run_poisoned(run, inputs, 1), compute_exact(inputs)) < TOLERANCE


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported(name: str) -> None:
    run = launches()[name]
    assert FAULTS[name][2] in kinds_of_faults(run, inputs_of(run.plan.graph), range(12))


def test_a_stage_handed_back_while_it_is_still_stored_from_is_reported() -> None:
    run = launches()["stored"]
    with suppress(HangError):
        run.run(inputs_of(run.plan.graph) | {name: run.allocate_tensor(name) for name in run.plan.graph.outputs})
    assert "race" in {fault.kind for fault in run.faults}


def test_random_kernels_mean_in_the_launch_what_their_loops_mean() -> None:
    """More by ``python -m tests.emulator --megakernel``."""
    tried, wrong = search(range(9108, 9112))
    assert tried == 4
    assert wrong == []
