"""Parts of a tile that share its sums, on the emulator: blocks at once, under delays, and planted faults."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.walk import EmulatedLaunch, prepare  # noqa: E402
from .test_emulator_walk import check, ffn, run_once, tile  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

A = il.Activation
SEEDS = range(3)


def launch(graph: il.Graph, parts: int, workers: int, change: tuple[str, str] | None = None):
    """The second product split."""
    plan = il.build(graph, il.Choices(workers, il.Dispatch.STATIC, split={"down": il.SplitK(parts)}))
    timeout_s = 2.0 if change is None else 0.004
    return EmulatedLaunch(plan, stages=3, change=change, at_once=True, timeout_s=timeout_s, jitter_s=1e-6)


SMALL = ffn(8, tile(8, 64, swap_ab=True), tile(16, 64, swap_ab=True), hidden=64)
#: By what is split: of weights as rows and of tokens as rows, shares of equal and of unequal width.
LAUNCHES = {
    "transposed, three parts of 40 tokens, few of them there": lambda: launch(
        ffn(35, tile(40, 64, swap_ab=True), tile(40, 64, swap_ab=True), extras=("bias", "residual")), 3, 6
    ),
    "three parts of 56 columns": lambda: launch(
        ffn(20, tile(64, 64), tile(64, 56), A.GELU_TANH, extras=("bias", "residual")), 3, 12
    ),
    "two parts of 48 and 40 columns, an odd row, two warpgroups": lambda: launch(
        ffn(40, tile(128, 96, warps=8), tile(128, 88, warps=8), A.SILU, extras=("gate",), hidden=144, less=1), 2, 4
    ),
}
_POST = "      add_release(launch.semaphores + ~item.split);\n"
#: Changes of the text: a part does not wait for the others, and one does not say that its sums are there.
BROKEN = {
    "hasty": ("      await_parts(launch, item);\n", ""),
    "lost": (_POST, f"      if (item.number != 4) {_POST.strip()}\n"),
}


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    made |= {name: launch(SMALL, 2, 3, change) for name, change in BROKEN.items()}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", LAUNCHES)
def test_shares_are_right_run_after_run(name: str) -> None:
    run = launches()[name]
    assert all(part.tile.share for part in run._parts[1:])
    results = []
    for seed in SEEDS:
        check(run, seed)
        results.append(run_once(run, seed))
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_part_that_never_says_that_its_sums_are_there_ends_in_an_error_and_the_next_run_too() -> None:
    run = launches()["lost"]
    for seed in (0, 1):
        with pytest.raises(HangError, match=r"^op 'down', tile \(0, \d\).* waited for 2 posts of sums .* and saw 1"):
            run_once(run, seed)


def test_a_part_that_adds_before_the_others_are_there_is_caught() -> None:
    run = launches()["hasty"]
    assert any(run_once(run, seed).isnan().any() for seed in range(8))
