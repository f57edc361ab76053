"""Roles that count an item's stages differently end the launch; the error says which, of what item, by how many."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import InterlaceError, LaunchEndedError, StageCountError  # noqa: E402
from interlace.executors.run import RunHandle  # noqa: E402
from interlace.kernels.abi import RECORD  # noqa: E402
from interlace.megakernel.constants import MISCOUNTED, UNFINISHED  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare, run_poisoned  # noqa: E402
from .test_emulator_megakernel import ffn, inputs_of, tile  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

_AHEAD = "for (int k = item.k_lo; k < item.k_hi; k += BK) {\n      tickets.look(launch);"
_BEHIND = "for (int k = k_lo; k < k_hi; k += BK) {\n      open_load("
_CONSUMERS = "item.k_lo + HELD * BK; k < item.k_hi; k += BK) {"
WAITER, CONSUMERS = "its loads after waits", "its consumers"
#: What is changed in the text of a product, and which role then takes how many stages more than it should.
FAULTS = {
    "ahead one fewer": (_AHEAD, "k = item.k_lo;", "k = item.k_lo + BK;", f"(?:{WAITER}|{CONSUMERS})", 1),
    "behind one fewer": (_BEHIND, "k = k_lo;", "k = k_lo + BK;", WAITER, -1),
    "behind one more": (_BEHIND, "k < k_hi;", "k < k_hi + BK;", WAITER, 1),
    "consumers one fewer": (_CONSUMERS, "item.k_lo +", "item.k_lo + BK +", CONSUMERS, -1),
    "consumers two fewer": (_CONSUMERS, "item.k_lo +", "item.k_lo + 2 * BK +", CONSUMERS, -2),
    "consumers one more": (_CONSUMERS, "k < item.k_hi", "k < item.k_hi + BK", CONSUMERS, 1),
}
#: Of the second item alone.
LATE = _CONSUMERS, _CONSUMERS.replace("item.k_lo +", "item.k_lo + (item.number == 1) * BK +")
#: Of an item by itself, behind which nothing comes but that there is none.
ALONE = "consumers one fewer", "consumers two fewer", "behind one more", "behind one fewer"
#: Items of so many stages, of a ring of so many, such that the place of the next item and that of who took one stage
#: more or fewer lie on both sides of two turns of the ring.
TURNS = {"none": (4, 5), "fewer": (4, 2), "more": (3, 2)}
CASES = [
    *((name, "none") for name in FAULTS),
    *((name, "alone") for name in ALONE),
    ("consumers one fewer", "fewer"),
    ("consumers one more", "more"),
]


def products(stages: int) -> il.Graph:
    return ffn(5, tile(64, 64), tile(64, 64), hidden=stages * 64, width=192)


@cache
def launches() -> dict[tuple[str, str], EmulatedLaunch]:
    """Return launches by fault and by kind of items."""
    one, alone = il.Schedule(1), il.workloads.one_matmul(5, 64, 256, tile=tile(64, 64))
    made = {("late", "none"): EmulatedLaunch(il.build(products(4), one), stages=5, change=LATE)}
    for name, where in CASES:
        before, old, new, *_ = FAULTS[name]
        stages, ring = TURNS.get(where, (4, 6))
        plan = il.build(alone if where == "alone" else products(stages), one)
        made[name, where] = EmulatedLaunch(plan, stages=ring, change=(before, before.replace(old, new)))
    prepare([*made.values()])
    return made


def ended_by(run: EmulatedLaunch, seed: int = 0) -> StageCountError:
    """Return the error of a run that counts wrong; the run traps, and no other run goes on from there."""
    with pytest.raises(StageCountError) as caught:
        run_poisoned(run, inputs_of(run.plan.graph), seed)
    assert "trap" in {fault.kind for fault in run.faults}
    run.faults.clear()
    run._reset()
    return caught.value


@pytest.mark.parametrize(("name", "where"), CASES)
def test_who_counts_otherwise_is_named_with_the_item(name: str, where: str) -> None:
    run, (*_, role, more) = launches()[name, where], FAULTS[name]
    for seed in range(3):
        error = ended_by(run, seed)
        count = f"{abs(more)} stage{'s' * (abs(more) > 1)} {'more' if more > 0 else 'fewer'}"
        op = run.plan.graph.ops[0].name
        said = rf"op '{op}', tile \(0, 0\) \(item 0\): {role} took {count} of the ring than its loads ahead of waits;"
        assert re.match(said, str(error))
        assert (error.item, error.extra_stages) == (0, more)


def test_the_item_that_is_named_is_the_one_that_was_counted_otherwise() -> None:
    error = ended_by(launches()["late", "none"])
    assert str(error).startswith("op 'up', tile (0, 1) (item 1): its consumers took 1 stage fewer")
    assert (error.item, error.extra_stages) == (1, -1)


def test_what_ends_the_launch_is_told_in_place_of_a_wait_that_failed_before() -> None:
    """Such as for what the item that is named never did."""
    run = launches()["consumers one fewer", "none"]
    run._fault.fill_(1)
    run._record.copy_(torch.tensor([1, 2, 0, 1, 0], dtype=torch.int32))
    assert ended_by(run).item == 0


# ---------------------------------------------------------------- where the context has ended


class _Gone:
    """A device on which nothing runs any more."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: object, **options: object) -> Any:
        raise RuntimeError("unspecified launch failure")


def launch_ended(why: int, item: int, expected: int, seen: int) -> EmulatedLaunch:
    """A launch that left a record on the host and ended its context."""
    run = EmulatedLaunch(il.build(il.workloads.one_matmul(5, 64, 256, tile=tile(64, 64)), il.Schedule(1)), stages=4)
    record = {"failed": 1, "item": item, "semaphore": why, "expected": expected, "seen": seen}
    run._record.copy_(torch.tensor([record[name] for name, _ in RECORD.fields]))
    run._is_interpreted, run._torch = False, SimpleNamespace(cuda=_Gone())
    return run


@pytest.mark.parametrize(
    ("record", "error", "said"),
    [
        ((MISCOUNTED, 0, 0, -3), StageCountError, "its consumers took 3 stages fewer"),
        (
            (UNFINISHED, 0, 1, 0),
            LaunchEndedError,
            r"^op 'matmul', tile \(0, 0\) \(item 0\) did not end .* waits for a stage .*, or at a barrier which",
        ),
        ((UNFINISHED, 0, 0, 0), LaunchEndedError, r"^nothing was loaded after op 'matmul', tile \(0, 0\) \(item 0\)"),
        ((UNFINISHED, -1, 0, 0), LaunchEndedError, r"^a worker's first item never began"),
        ((0, 0, 2, 1), RuntimeError, "unspecified launch failure"),  # a wait that failed, of which no more can be told
    ],
)
def test_what_ended_the_launch_is_said_by_whoever_asks(
    record: tuple[int, int, int, int], error: type[Exception], said: str
) -> None:
    run = launch_ended(*record)
    asks = RunHandle(_Gone(), False, run._check)

    async def wait() -> None:
        await asks

    # The device is asked for nothing before that: new tensors would be laid out, and operands copied.
    for ask in (run.synchronize, lambda: run.run({}), asks.is_done, lambda: asyncio.run(wait())):
        with pytest.raises(error, match=said) as caught:
            ask()
        if isinstance(caught.value, LaunchEndedError):
            assert caught.value.item == record[1]


def test_a_run_that_is_no_longer_awaited_checks_nothing() -> None:
    """A check would wait for the device, and hide why the run is not awaited."""

    def check() -> None:
        raise AssertionError

    async def given_up() -> None:
        started, go_on = threading.Event(), threading.Event()
        event = SimpleNamespace(synchronize=lambda: (started.set(), go_on.wait()))

        async def wait() -> None:
            await RunHandle(event, False, check)

        task = asyncio.create_task(wait())
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(given_up())


def test_an_error_of_the_device_that_no_launch_recorded_is_left_as_it_is() -> None:
    run = launch_ended(MISCOUNTED, 0, 1, 1)
    run._record.zero_()
    asks = RunHandle(_Gone(), False, run._check)
    for ask in (run.synchronize, asks.is_done):
        with pytest.raises(RuntimeError, match=r"^unspecified launch failure") as caught:
            ask()
        assert not isinstance(caught.value, InterlaceError)
