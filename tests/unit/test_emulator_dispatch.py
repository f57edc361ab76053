"""The text of the megakernel under each dispatch, blocks at once: each item once, run after run, whoever takes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace import csrc  # noqa: E402
from interlace.bench.host_dispatcher import HostDispatchedExecutor  # noqa: E402
from interlace.core.errors import HangError  # noqa: E402
from interlace.kernels.spin import spin  # noqa: E402
from interlace.megakernel.constants import HELD  # noqa: E402
from interlace.megakernel.dispatch import CODES, ROW_BITS, DispatchCode  # noqa: E402
from interlace.trace.events import find_steals  # noqa: E402

from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SOURCES = Path(csrc.__file__).parents[1]
ITEMS, WORKERS = 8, 3
ONE, HALF = il.Stealing(), il.Stealing(None, il.Victim.RANDOM)


def chain(ops: int = 3) -> il.Graph:
    """Each item of an op waits for the one before in the same place; the last op posts nothing."""
    x = [il.Tensor(f"x{n}", (ITEMS,), il.int32) for n in range(ops + 1)]
    made = tuple(spin(f"op{n}", x[n], x[n + 1]) for n in range(ops))
    return il.Graph("chain", tuple(x), made, ("x0",), (x[-1].name,))


def launch(dispatch: il.Dispatch, stealing: il.Stealing = ONE, ops: int = 3) -> EmulatedLaunch:
    plan = il.build(chain(ops), il.Schedule(WORKERS, dispatch, stealing=stealing))
    return EmulatedLaunch(plan, stages=4, at_once=True, timeout_s=2.0, trace=True, jitter_s=1e-6)


class Hosted(HostDispatchedExecutor, EmulatedLaunch):
    """Blocks of the emulator, and a thread that feeds them."""


def launch_hosted() -> EmulatedLaunch:
    plan = il.build(chain(), il.Schedule(WORKERS, il.Dispatch.DISPATCHER))
    return Hosted(plan, stages=4, at_once=True, timeout_s=60.0, trace=True, jitter_s=1e-6)


def two_lists(
    change: tuple[str, str] | None, own: int = ITEMS - 1, stealing: il.Stealing = ONE, timeout_s: float = 0.004
) -> EmulatedLaunch:
    """Items of the second op wait for all of the first; worker 0 has one item, all others are worker 1's."""
    schedule = il.Schedule(2, il.Dispatch.STEALING, policy=il.KernelSync(), stealing=stealing)
    plan = il.build(chain(2), schedule)
    worker = np.ones(2 * ITEMS, np.int64)
    worker[own] = 0
    plan = replace(plan, items=replace(plan.items, worker=worker))
    return EmulatedLaunch(plan, stages=4, change=change, at_once=True, timeout_s=timeout_s, trace=True)


_LEFT = "word(row + some, row + length(rows))"
_SWAP = f"const unsigned long long seen = atomicCAS(at(launch, list), head, {_LEFT});"
_KEPT = "      if (some > 1) *(volatile unsigned long long*)at(launch, blockIdx.x) = word(row + 1, row + some);\n"
#: Changes of the text of stealing.
STEALING = {
    "right": None,
    "taken twice": (
        _SWAP,
        "const unsigned long long seen = head;\n        for (int n = 0; n < 100; ++n) __nanosleep(1);\n"
        f"        *at(launch, list) = {_LEFT};",
    ),
    "lost": (_SWAP, _SWAP.replace("row + some,", "row + some + (list != blockIdx.x && length(rows) > 9),")),
    "hasty": ("if (row < 0) await_finished(launch, sent, HELD - 1);", "if (row < 0) sent = 0;"),
}
#: The same, of what a thief takes besides.
HALVES = {
    "half": None,
    "half, kept twice": (_KEPT, _KEPT.replace("row + 1", "row")),
    "half, lost": (_KEPT, ""),
}


def queue(
    change: tuple[str, str], dispatch: il.Dispatch = il.Dispatch.QUEUE, timeout_s: float = 0.004
) -> EmulatedLaunch:
    plan = il.build(chain(), il.Schedule(WORKERS, dispatch))
    return EmulatedLaunch(plan, stages=4, change=change, at_once=True, timeout_s=timeout_s)


_GROUP = "    unsigned ready = __ballot_sync(0xffffffff, met);\n"
#: Changes of the text of the queue.
QUEUE = {
    "wake-up lost": (_GROUP, "    unsigned ready = __ballot_sync(0xffffffff, met && group != 5);\n"),
    "woken twice": (
        "    unsigned ready = __ballot_sync(0xffffffff, met);\n",
        "    if (__any_sync(0xffffffff, met && group == 2)) push(launch, item.run, 2);\n" + _GROUP,
    ),
}
_MET = "met = atomicAdd(queue.met + group, 1u) + 1 == (run + 1) * (unsigned)queue.missing[group];"
_ROW = "(int)launch.queue.slots[later]"
_EMPTY = "  *mailbox(launch, item.run, blockIdx.x, taken) = mail(item.run, EMPTIED | (unsigned)(semaphore + 1));\n"
#: Changes of the text of the dispatcher.
DISPATCHER = {
    "never ready": (_MET, _MET.replace(";", " && group != 5;")),
    "never told": (_EMPTY, f"  if (item.number != 6)\n  {_EMPTY}"),
    "given twice": (_ROW, _ROW.replace("later", "n == launch.count - 1 ? later - 1 : later")),
}


class ToyDispatch(DispatchCode):
    """Each worker runs its own queue: a dispatch that is this class and one header."""

    header = "dispatch/toy.cuh"


def toy() -> EmulatedLaunch:
    header = (SOURCES / "csrc/dispatch/static.cuh").read_text().replace("StaticDispatch", "ToyDispatch")
    read = csrc._read_file

    def read_toy(name: str) -> str:
        return header if name == ToyDispatch.header else read(name)

    with mock.patch.object(csrc, "_read_file", read_toy), mock.patch.dict(CODES, {il.Dispatch.STATIC: ToyDispatch}):
        made = launch(il.Dispatch.STATIC)
        assert "struct ToyDispatch" in made.walk.cuda_source
        return made


LAUNCHES: dict[str, Callable[[], EmulatedLaunch]] = {d.value: partial(launch, d) for d in il.Dispatch}
LAUNCHES |= {f"two lists, {name}": partial(two_lists, change) for name, change in STEALING.items()}
LAUNCHES |= {name: partial(two_lists, change, stealing=HALF) for name, change in HALVES.items()}
LAUNCHES["stealing half"] = partial(launch, il.Dispatch.STEALING, HALF)
LAUNCHES |= {name: partial(queue, change) for name, change in QUEUE.items()}
LAUNCHES |= {name: partial(queue, change, il.Dispatch.DISPATCHER) for name, change in DISPATCHER.items()}
LAUNCHES["half, kept twice"] = partial(two_lists, HALVES["half, kept twice"], stealing=HALF, timeout_s=2.0)
LAUNCHES["given twice"] = partial(queue, DISPATCHER["given twice"], il.Dispatch.DISPATCHER, 2.0)
LAUNCHES["host"] = launch_hosted
LAUNCHES["toy"] = toy
LAUNCHES["dispatcher, one op"] = partial(launch, il.Dispatch.DISPATCHER, ops=1)
#: Whoever takes another item behind one that waits for that one waits for ever.
LAUNCHES |= {name: partial(two_lists, STEALING[name], 2 * ITEMS - 1) for name in ("right", "hasty")}
#: Where no wait is to end, or only one, a loaded machine may take its time.
for name in ("two lists, right", "half", "right"):
    LAUNCHES[name] = partial(LAUNCHES[name], timeout_s=2.0)  # type: ignore[call-arg]
for name in ("never ready", "never told", "wake-up lost"):
    LAUNCHES[name] = partial(LAUNCHES[name], timeout_s=0.1)  # type: ignore[call-arg]


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: make() for name, make in LAUNCHES.items()}
    unlike = {run.walk.cuda_source: run for run in made.values()}
    prepare([*unlike.values()])
    for run in made.values():
        run.library = unlike[run.walk.cuda_source].library
    return made


def run_once(run: EmulatedLaunch, seed: int) -> None:
    given = torch.from_numpy(np.random.default_rng(seed).integers(0, 400, ITEMS).astype(np.int32))
    given[seed % ITEMS] = 3000  # one is long, and its worker is late for what follows in its list
    out = torch.full_like(given, -1)
    for name in run.plan.graph.intermediates:
        run.get_intermediate(name).fill_(-1)
    run.seed = seed
    run.run({"x0": given, run.plan.graph.outputs[0]: out})
    assert torch.equal(out, given)


def list_doubled(run: EmulatedLaunch, runs: int) -> list[str]:
    """Items whose semaphores were posted too often, by name."""
    post = run.plan.items.post
    often = run._semaphores.numpy() > runs * np.bincount(post[post >= 0], minlength=len(run._semaphores))
    return [run.plan.format_item(n) for n in np.flatnonzero((post >= 0) & often[post])]


def check(run: EmulatedLaunch, runs: range) -> int:
    """Each item posts once a run, as many as there are semaphores; returns how many were stolen."""
    stolen = 0
    for seed in runs:
        run_once(run, seed)
        assert [str(fault) for fault in run.faults] == []
        assert list_doubled(run, seed + 1) == []
        assert (run._semaphores[: run.plan.semaphores] >= seed + 1).all()
        stolen += len(find_steals(run.plan.items.worker, run.read_trace()))
    return stolen


@pytest.mark.parametrize("name", [*(d.value for d in il.Dispatch), "stealing half"])
def test_each_item_runs_once_whoever_takes_it(name: str) -> None:
    run, runs = launches()[name], range(5 if "stealing" in name else 3)
    stolen = check(run, runs)
    assert (stolen > 0) is ("stealing" in name)
    if stolen:
        assert left_of_lists(run) == [(len(runs), 0)] * WORKERS


def test_a_dispatch_is_one_header_and_one_class() -> None:
    run = launches()["toy"]
    assert "using Tickets = ToyDispatch;" in run.walk.cuda_source
    assert check(run, range(3)) == 0


@pytest.mark.parametrize("name", ["stealing", "queue"])
def test_only_its_class_and_its_header_know_how_a_dispatch_is_launched(name: str) -> None:
    """Next to them only the reference executor, which models each dispatch."""
    struct = CODES[il.Dispatch(name)].__name__
    files = (path for room in ("csrc", "megakernel", "executors") for path in (SOURCES / room).rglob("*.*"))
    paths = [path for path in files if path.suffix in (".cuh", ".py")]
    assert len(paths) > 100
    naming = {
        path.relative_to(SOURCES).as_posix()
        for path in paths
        if re.search(rf"\b(Dispatch\.{name.upper()}|{struct})\b", path.read_text())
    }
    assert naming - {"executors/reference.py"} == {f"csrc/dispatch/{name}.cuh", "megakernel/dispatch.py"}


def left_of_lists(run: EmulatedLaunch) -> list[tuple[int, int]]:
    """Return, for each list, the run that its word counts and the number of rows left."""
    rows, words = 1 << ROW_BITS, run._heads.numpy().view(np.uint64).tolist()
    return [(word >> 48, word % rows - (word >> ROW_BITS) % rows) for word in words]


@pytest.mark.parametrize("name", ["two lists, right", "right", "half"])
def test_a_thief_takes_what_an_owner_has_not_come_to(name: str) -> None:
    run = launches()[name]
    check(run, range(3))
    for item, thief, victim in find_steals(run.plan.items.worker, run.read_trace()).tolist():
        assert (thief, victim) == (1 - run.plan.items.worker[item], run.plan.items.worker[item])


@pytest.mark.parametrize("name", ["stealing", "hybrid"])
def test_heads_wrap(name: str) -> None:
    run = launches()[name]
    if name == "hybrid":
        once = np.array([*[0] * WORKERS, np.diff(run._table.worker_rows)[-1] + WORKERS])
        run._reset()
        check(run, range(2))
        assert run._heads.tolist() == (2 * once).tolist()
    for runs in (2**16 - 1, 2**31 - 1, 2**32 - 1):
        run._semaphores.fill_(np.uint32(runs).astype(np.int32).item())
        run._counters[0] = runs * WORKERS
        run._heads.copy_(torch.from_numpy(once * runs)) if name == "hybrid" else run._heads.fill_(-1 << 48)
        for seed in range(2):
            run_once(run, seed)
            assert run.faults == []
    run._reset()


def test_an_item_that_two_workers_take_is_named() -> None:
    run, found = launches()["two lists, taken twice"], set()
    for seed in range(8):
        run_once(run, seed)
        found |= {*list_doubled(run, 1)}
        run._reset()
        if found:
            break
    assert found <= {f"op 'op0', tile ({n})" for n in range(ITEMS)}
    assert found


def test_an_item_that_a_thief_runs_and_keeps_is_named() -> None:
    """Two run it at once, or one after the other."""
    run, found = launches()["half, kept twice"], set()
    for seed in range(8):
        with suppress(HangError, AssertionError):
            run_once(run, seed)
        found |= {*list_doubled(run, 1)}
        run._reset()
    assert found


@pytest.mark.parametrize("name", ["two lists, lost", "hasty", "half, lost"])
def test_an_item_that_is_lost_or_held_behind_one_that_waits_for_it_is_named(name: str) -> None:
    """Or, where nobody waits for it, is missing in what comes out."""
    run, told = launches()[name], []
    for seed in range(8):
        try:
            run_once(run, seed)
        except HangError as error:
            told.append(str(error))
        except AssertionError:
            run._reset()
    assert told
    named = r"op 'op1', tile \(\d\).*op 'op0', tile \(\d\).* (never posted|posted too late)"
    assert [one for one in told if not re.match(named, one)] == []
    assert any("never posted. The" in one for one in told) == (name != "hasty")


def test_an_item_that_nobody_puts_into_the_queue_is_named() -> None:
    run = launches()["wake-up lost"]
    name = run.plan.format_item(
        run._table.items["number"][run._memory.values["rows"][run._memory.values["members"][5]]]
    )
    with pytest.raises(HangError, match=rf"came before the watchdog fired; {re.escape(name)} \(item \d+\) never came"):
        run_once(run, 0)


def test_an_item_that_comes_to_the_queue_twice_is_named() -> None:
    """It takes the place of another, which nobody runs."""
    run = launches()["woken twice"]
    twice = run.plan.format_item(
        run._table.items["number"][run._memory.values["rows"][run._memory.values["members"][2]]]
    )
    with suppress(AssertionError, HangError):
        run_once(run, 0)
    assert list_doubled(run, 1) == [twice]


def test_a_thread_of_the_host_gives_each_item_once() -> None:
    run = launches()["host"]
    assert isinstance(run, Hosted)
    try:
        check(run, range(5))
        assert not run._memory.values["met"].any()
    finally:
        run.close()


@pytest.mark.parametrize(("name", "lost"), [("never ready", 13), ("never told", ITEMS + 6)])
def test_an_item_that_the_dispatcher_does_not_give_is_named(name: str, lost: int) -> None:
    run = launches()[name]
    said = rf"for an item of the dispatcher, for which \d+ of 24 items came .* \(item {lost}\) never came"
    with pytest.raises(HangError, match=said):
        run_once(run, 0)
    assert run._heads.tolist() == [0] * (2 * HELD * WORKERS)


def test_an_item_that_the_dispatcher_gives_in_place_of_another_leaves_that_undone() -> None:
    with pytest.raises(AssertionError):
        run_once(launches()["given twice"], 0)


def test_the_dispatcher_ends_where_nobody_posts() -> None:
    """Seeds with which its block once had the only turn for ever, while others had yet to hear that nothing is left."""
    run = launches()["dispatcher, one op"]
    for seed in (6, 11, 22):
        run_once(run, seed)
        assert [str(fault) for fault in run.faults] == []


def test_the_dispatcher_counts_on_and_leaves_mailboxes_empty() -> None:
    run = launches()["dispatcher"]
    run._reset()
    check(run, range(2))
    words = run._heads.numpy().view(np.uint64)
    assert (words.reshape(2, -1) >> 32 == [[1], [2]]).all()
    assert (words >> 31 & 1 == 1).all()
    for runs in (2**31 - 1, 2**32 - 1):
        run._counters[0] = runs * WORKERS
        for value in (run._semaphores, run._memory.values["met"], run._memory.values["tail"]):
            value.fill_(np.uint32(runs).astype(np.int32).item())
        run._heads.copy_(torch.from_numpy(np.full(2 * HELD * WORKERS, (runs << 32) + 2**31, np.uint64).view(np.int64)))
        run_once(run, 0)
        assert run.faults == []
    run._reset()


def test_the_queue_counts_on() -> None:
    run = launches()["queue"]
    n, ready = len(run.plan.items), run._memory.counts["ready"]
    assert (n, ready) == (3 * ITEMS, ITEMS)
    run._reset()
    check(run, range(2))
    runs = int(run._counters[0]) // (n + WORKERS)
    assert runs == 2
    assert run._memory.values["tail"].item() == runs * (n - ready)
    assert (run._memory.values["met"][:-1] == runs).all()
    for runs in (2**31 - 1, 2**32 - 1):
        run._counters[0] = runs * (n + WORKERS)
        queue = run._memory.values
        for value, once in ((run._semaphores, 1), (queue["met"], 1), (queue["tail"], n - ready)):
            value.fill_(np.uint32(runs * once % 2**32).astype(np.int32).item())
        for seed in range(2):
            run_once(run, seed)
            assert run.faults == []
    run._reset()
