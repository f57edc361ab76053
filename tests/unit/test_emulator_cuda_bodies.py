"""Plain text between products in one launch on the emulator: right, run after run, and planted faults are reported."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402
from interlace.kernels.abi import WAIT  # noqa: E402

from ..cases import TORCH, relative_error, strike_posts  # noqa: E402
from ..cuda_bodies import chain  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SEEDS = range(3)
TOLERANCE = 6e-3  # of bf16, which is rounded to three times


def tile(m: int, n: int, warps: int = 4, swap_ab: bool = False) -> il.MatmulTile:
    return il.MatmulTile(m, n, 64, num_warps=warps, swap_ab=swap_ab)


def compute_exact(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    d = {name: value.double() for name, value in t.items()}
    h = d["x"] @ d["w_up"].T
    return h * (h.square().mean(1, keepdim=True) + 1e-5).rsqrt() * d.get("scale", 1.0) @ d["w_down"].T


def inputs_of(graph: il.Graph) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {t.name: torch.randn(t.shape).to(TORCH[t.dtype.name]) for t in map(graph.tensor, graph.inputs)}


def run_once(run: EmulatedLaunch, seed: int) -> torch.Tensor:
    return run_poisoned(run, inputs_of(run.plan.graph), seed)


def check(run: EmulatedLaunch, seed: int) -> None:
    error = relative_error(run_once(run, seed), compute_exact(inputs_of(run.plan.graph)))
    assert [str(fault) for fault in run.faults] == []
    assert error < TOLERANCE


def launch(graph: il.Graph, change: tuple[str, str] | None = None, **schedule) -> EmulatedLaunch:
    return EmulatedLaunch(il.build(graph, il.Schedule(**{"workers": 1, **schedule})), stages=3, change=change)


LAUNCHES = {
    "tickets, parts of products, waits by chunk": lambda: launch(
        chain(17, tile(24, 64, swap_ab=True)), split={"down": il.SplitK(2)}, policy=il.TileSync(), chunk_waits=True
    ),
    "lists": lambda: launch(
        chain(17, tile(24, 64, swap_ab=True)), split={"down": il.SplitK(2)}, dispatch=il.Dispatch.STATIC
    ),
    "two warpgroups, static, no weight": lambda: launch(
        chain(19, tile(128, 56, 8), weight=False, bm=3), dispatch=il.Dispatch.STATIC
    ),
}


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", LAUNCHES)
def test_texts_and_products_pass_data_to_each_other_whatever_the_schedule(name: str) -> None:
    for seed in SEEDS:
        check(launches()[name], seed)


@pytest.mark.parametrize("op", ["up", "norm"])
def test_a_missing_post_before_or_behind_a_text_ends_in_an_error_and_the_next_run_is_right(op: str) -> None:
    run = next(iter(launches().values()))
    strike_posts(run, [int((run.plan.items.op == run.plan.graph.op_index(op)).argmax())])
    with pytest.raises(HangError, match=f"op '{op}', tile.* never posted"):
        run_once(run, 0)
    run.faults.clear()  # what ran in spite of the missing data
    check(run, 1)


def test_a_threshold_that_is_too_low_is_a_race() -> None:
    run = launches()["lists"]  # by tickets none would be drawn before the text, which lasts, has begun
    waits = run._waits.clone()
    run._waits.view(-1, WAIT.columns)[:, WAIT.get_column("threshold")] -= 1
    for seed in range(24):  # the last post that is missing mostly comes in time all the same
        run_once(run, seed)
        if "race" in {fault.kind for fault in run.faults}:
            break
    assert "race" in {fault.kind for fault in run.faults}
    run._waits.copy_(waits)
    run._reset()
    run.faults.clear()


_MEET = "    if (WARPGROUPS > 1) synchronise_block();\n"
#: Changes of the text, and the kind of the fault that is reported.
FAULTS = {
    "tiles that do not meet": (
        _MEET + "    BODY(tile, a);\n" + _MEET,
        "    BODY(tile, a);\n",
        "race",
    ),
    "a text that does not meet": ("  synchronise_block();\n  float sum", "  float sum", "race"),
    "a stage handed back before it is full": ("    await_stage(stage);\n    __sync", "    __sync", "deadlock"),
    "a loader that counts no stage": ("    open_load(stage, 0);\n    stage.advance();\n", "", "deadlock"),
}


@cache
def launch_broken() -> dict[str, EmulatedLaunch]:
    graph = chain(9, tile(128, 56, 8), bm=3)  # tiles begin where the one before has ended
    made = {name: launch(graph, (before, after)) for name, (before, after, _) in FAULTS.items()}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported(name: str) -> None:
    run = launch_broken()[name]
    assert FAULTS[name][2] in kinds_of_faults(run, inputs_of(run.plan.graph), SEEDS)
