"""Roles that count an item's stages differently end the launch; the error says which, of what item, by how many."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError, InterlaceError, StageCountError  # noqa: E402
from interlace.executors.run import Run  # noqa: E402
from interlace.kernels.abi import RECORD  # noqa: E402
from interlace.launch.walk import MISCOUNTED, UNFINISHED  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.walk import EmulatedLaunch, prepare, run_poisoned  # noqa: E402
from .test_emulator_walk import ffn, inputs_of, tile  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

_AHEAD = "for (int k = item.k_lo; k < item.k_hi; k += BK) {\n      tickets.look(launch);"
_BEHIND = "for (int k = k_lo; k < k_hi; k += BK) {\n      open_dependent("
_CONSUMERS = "item.k_lo + HELD * BK; k < item.k_hi; k += BK) {"
WAITER, CONSUMERS = "its loads behind waits", "its consumers"
#: What is changed in the text of a product, and which role then takes how many stages more than it should.
FAULTS = {
    "ahead one fewer": (_AHEAD, "k = item.k_lo;", "k = item.k_lo + BK;", CONSUMERS, 1),
    "behind one fewer": (_BEHIND, "k = k_lo;", "k = k_lo + BK;", WAITER, -1),
    "consumers one fewer": (_CONSUMERS, "item.k_lo +", "item.k_lo + BK +", CONSUMERS, -1),
    "consumers two fewer": (_CONSUMERS, "item.k_lo +", "item.k_lo + 2 * BK +", CONSUMERS, -2),
    "consumers one more": (_CONSUMERS, "k < item.k_hi", "k < item.k_hi + BK", CONSUMERS, 1),
}
#: Of an item by itself, behind which nothing comes but that there is none.
ALONE = "consumers one fewer", "consumers two fewer"


@cache
def launches() -> dict[tuple[str, bool], EmulatedLaunch]:
    own = tile(64, 64)
    alone = il.workloads.one_matmul(5, 64, 256, tile=own)
    made = {}
    for name, (before, old, new, _, _) in FAULTS.items():
        change = before, before.replace(old, new)
        plan = il.build(ffn(5, own, own, hidden=256, width=192), il.Choices(1))
        made[name, False] = EmulatedLaunch(plan, stages=5, change=change)
        if name in ALONE:
            made[name, True] = EmulatedLaunch(il.build(alone, il.Choices(1)), stages=4, change=change)
    prepare([*made.values()])
    return made


@pytest.mark.parametrize(("name", "alone"), [*((name, False) for name in FAULTS), *((name, True) for name in ALONE)])
def test_who_counts_otherwise_is_named_with_the_item(name: str, alone: bool) -> None:
    run, (*_, role, more) = launches()[name, alone], FAULTS[name]
    for seed in range(3):
        with pytest.raises(StageCountError) as caught:
            run_poisoned(run, inputs_of(run.plan.graph), seed)
        run._reset()
        count = f"{abs(more)} stage{'s' * (abs(more) > 1)} {'more' if more > 0 else 'fewer'}"
        op = run.plan.graph.ops[0].name
        said = rf"op '{op}', tile \(0, \d\) \(item \d\): {role} took {count} of the ring than its loads ahead of waits;"
        assert re.match(said, str(caught.value))
        assert caught.value.more == more
        assert caught.value.item in range(run.plan.graph.ops[0].tiles)


# ---------------------------------------------------------------- where the context has ended


class _Gone:
    """A device on which nothing runs any more."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: object, **options: object) -> Any:
        raise RuntimeError("unspecified launch failure")


def ended(why: int, item: int, expected: int, seen: int) -> EmulatedLaunch:
    """A launch that left a record on the host and ended its context."""
    run = EmulatedLaunch(il.build(il.workloads.one_matmul(5, 64, 256, tile=tile(64, 64)), il.Choices(1)), stages=4)
    record = {"failed": 1, "item": item, "semaphore": why, "expected": expected, "seen": seen}
    run._record.copy_(torch.tensor([record[name] for name, _ in RECORD.fields]))
    run._interpret, run._torch = False, SimpleNamespace(cuda=_Gone())
    return run


@pytest.mark.parametrize(
    ("record", "error", "said"),
    [
        ((MISCOUNTED, 0, 1, -3), StageCountError, "its consumers took 3 stages fewer"),
        ((UNFINISHED, 0, 1, 0), HangError, r"^op 'matmul', tile \(0, 0\) \(item 0\) did not end"),
        ((UNFINISHED, 0, 0, 0), HangError, r"^nothing was loaded behind op 'matmul', tile \(0, 0\) \(item 0\)"),
        ((UNFINISHED, -1, 0, 0), HangError, r"^a worker's first item never began"),
        ((0, 0, 2, 1), RuntimeError, "unspecified launch failure"),  # a wait that failed; what it was is gone
    ],
)
def test_what_ended_the_launch_is_said_by_whoever_asks(
    record: tuple[int, int, int, int], error: type[Exception], said: str
) -> None:
    run = ended(*record)
    asks = Run(_Gone(), False, run._check)

    async def wait() -> None:
        await asks

    for ask in (run.synchronize, run._check, asks.done, lambda: asyncio.run(wait())):
        with pytest.raises(error, match=said):
            ask()


def test_an_error_of_the_device_that_no_launch_recorded_is_left_as_it_is() -> None:
    run = ended(MISCOUNTED, 0, 1, 1)
    run._record.zero_()
    asks = Run(_Gone(), False, run._check)
    for ask in (run.synchronize, asks.done):
        with pytest.raises(RuntimeError, match=r"^unspecified launch failure") as caught:
            ask()
        assert not isinstance(caught.value, InterlaceError)
