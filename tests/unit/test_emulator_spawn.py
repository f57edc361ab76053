"""The text of spawn dispatch, blocks at once and with delays: what is wanted runs, once, and the end is the end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import (  # noqa: E402
    DeviceError,
    EarlyEndError,
    HangError,
    QueueOverflowError,
)
from interlace.megakernel.options import Termination  # noqa: E402
from interlace.workloads import quadrature  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

WORKERS = 3
GRAPH = quadrature(4, 2, 8, 1e-4)
Inputs = Mapping[str, np.ndarray]
#: Nothing but the whole interval is wanted.
EASY = {"centre": np.full(2, 0.5, np.float32), "width": np.full(2, 10.0, np.float32)}


def some(seed: int) -> Inputs:
    random = np.random.default_rng(seed)
    return {
        "centre": random.uniform(0, 1, 2).astype(np.float32),
        "width": (10 ** random.uniform(-2, 0, 2)).astype(np.float32),
    }


def launch(dispatch: il.Dispatch = il.Dispatch.SPAWN, timeout_s: float = 2.0, **options: object) -> EmulatedLaunch:
    plan = il.build(GRAPH, il.Schedule(WORKERS, dispatch))
    return EmulatedLaunch(plan, stages=4, at_once=True, timeout_s=timeout_s, trace=True, **options)


def launch_broken(before: str, after: str) -> EmulatedLaunch:
    return launch(timeout_s=0.004, change=(before, after))


_PUT = "store_queue_slot(queue.slots + place, item.run, queue.rows[child] + 1u);"
_SPAWN = "  const int beyond = spawn(launch, item)"
_NAP = "for (int n = 0; n < 2000; ++n) __nanosleep(1);"
LAUNCHES = {
    "ticket": partial(launch, il.Dispatch.TICKET),
    **{kind.value: partial(launch, termination=kind, jitter_s=1e-6) for kind in Termination},
    "lost": partial(launch_broken, _PUT, f"if (place != 1) {_PUT}"),
    "off first": partial(launch_broken, _SPAWN, f"  Termination::count_off(launch, item);\n  {_NAP}\n{_SPAWN}"),
}


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    prepare([*made.values()])
    return made


def run_once(run: EmulatedLaunch, given: Inputs, seed: int) -> float:
    """The integral; whatever memory holds before."""
    for name in run.plan.graph.intermediates:
        run.get_intermediate(name).fill_(7)
    out = torch.full((1,), float("nan"))
    run.seed = seed
    run.run({**{name: torch.from_numpy(value) for name, value in given.items()}, "out": out})
    return out.item()


@pytest.mark.parametrize("kind", Termination)
def test_what_is_wanted_runs_once_and_every_way_ends_alike(kind: Termination) -> None:
    run, ticket = launches()[kind.value], launches()["ticket"]
    for seed in range(6):
        given = EASY if seed == 2 else some(seed)
        assert run_once(run, given, seed) == run_once(ticket, given, seed)
        wanted = int((run.get_intermediate("wanted")[1:] != 0).sum())
        trace = run.read_trace()
        assert len(trace.op) == wanted + 2
        assert len({*zip(trace.op.tolist(), trace.tile.tolist(), strict=True)}) == wanted + 2
        assert torch.equal(run.get_intermediate("wanted")[1:], ticket.get_intermediate("wanted")[1:])
        assert torch.equal(run.get_intermediate("value"), ticket.get_intermediate("value"))
    assert [str(fault) for fault in run.faults] == []


@pytest.mark.parametrize("kind", Termination)
def test_numbers_of_runs_wrap(kind: Termination) -> None:
    run = launches()[kind.value]
    for runs in (2**31 - 1, 2**32 - 1):
        run._reset()
        run._counters[0] = runs * WORKERS
        run._semaphores.fill_(np.uint32(runs).astype(np.int32).item())
        right = [run_once(launches()["ticket"], some(seed), seed) for seed in range(2)]
        assert [run_once(run, some(seed), seed) for seed in range(2)] == right
        assert run.faults == []
    run._reset()


@pytest.mark.parametrize("kind", Termination)
def test_what_finds_no_place_is_an_error_that_names_its_spawner_and_the_next_run_is_right(kind: Termination) -> None:
    run = launches()[kind.value]
    held = run._memory.counts["capacity"]
    run.release()
    run._memory.counts["capacity"] = 1  # type: ignore[index]
    beyond = run._memory.values["slots"][1 + WORKERS :].clone()
    with pytest.raises(QueueOverflowError, match=r"^op 'level\d', tile .* spawned an item.* it has 1,"):
        run_once(run, some(1), 0)
    assert torch.equal(run._memory.values["slots"][1 + WORKERS :], beyond * 0)
    run.release()
    run._memory.counts["capacity"] = held  # type: ignore[index]
    assert run_once(run, some(1), 1) == run_once(launches()["ticket"], some(1), 1)


def test_an_item_that_is_wanted_and_never_comes_is_named() -> None:
    run = launches()["lost"]
    with pytest.raises(HangError, match=r"op 'level1', tile \(1\) \(item 2\) never came, though") as caught:
        run_once(run, some(1), 0)
    assert (caught.value.item, caught.value.producer) == (2, "op 'level0', tile (0)")
    assert run_once(run, EASY, 1) == run_once(launches()["ticket"], EASY, 1)


def test_an_item_that_counts_itself_off_before_it_spawns_ends_the_run_early_by_name() -> None:
    run, found = launches()["off first"], set()
    for seed in range(8):
        with suppress(HangError):
            try:
                run_once(run, some(1), seed)
            except EarlyEndError as error:
                found.add(str(error).partition(" was not done")[0])
        run._reset()
        if found:
            break
    assert found <= {f"{run.plan.format_item(n)} (item {n})" for n in range(15)}
    assert found


def test_options_that_do_not_go_with_it_are_refused() -> None:
    plan = il.build(GRAPH, il.Schedule(WORKERS, il.Dispatch.SPAWN))
    with pytest.raises(DeviceError, match="leave out dependent_launch"):
        il.MegakernelExecutor(plan, il.RunOptions("meta", dependent_launch=True))
    with pytest.raises(DeviceError, match="termination is 'votes'; give one of"):
        il.RunOptions(termination="votes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dispatch", "bound"), [(il.Dispatch.SPAWN, 14), (il.Dispatch.QUEUE, 15), (il.Dispatch.DISPATCHER, 15)]
)
def test_a_queue_that_may_get_more_than_it_is_to_hold_is_refused_before_it_is_launched(
    dispatch: il.Dispatch, bound: int
) -> None:
    """One of 16 items is ready from the start, and under spawn dispatch the last is claimed by ticket."""
    plan = il.build(GRAPH, il.Schedule(WORKERS, dispatch))
    said = rf"up to {bound} items come to the queue of a launch under {dispatch.value} .* has room for {bound - 1};"
    with pytest.raises(QueueOverflowError, match=said):
        il.MegakernelExecutor(plan, il.RunOptions("meta", queue_capacity=bound - 1))
    il.MegakernelExecutor(plan, il.RunOptions("meta", queue_capacity=bound))
    for capacity in (-1, 1.5, True):
        with pytest.raises(DeviceError, match=r"capacity is .*; give a number of items, 0 or more"):
            il.RunOptions(queue_capacity=capacity)  # type: ignore[arg-type]
