"""Launches on several streams: in which order a GPU could run what was enqueued, told by streams that only note it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings

import interlace as il
from interlace.core.errors import CoverageError, DeviceError, HangError
from interlace.executors.run import RunHandle
from interlace.executors.streams import MAX_STREAMS, StreamFork, assign_streams, check_streams
from interlace.policies.streams import Streams
from interlace.sim.modes import SERIAL, slow_to_plain_bodies

from ..draws import EXAMPLES
from .graphs import build_gated, two_matmuls
from .test_streams_cover import Before, dags, find_needed


@dataclass
class Stream:
    """Each thing enqueued follows the one before, and what the events stood for that it waits on."""

    cuda: Cuda
    legacy: bool = False
    priority: int = 0
    ahead: set[str] = field(default_factory=set)

    def record_event(self, event: Event) -> None:
        event.ahead = set(self.ahead)

    def wait_event(self, event: Event) -> None:
        assert event.ahead is not None, "waits for an event that was never recorded"
        self.ahead |= event.ahead

    def enqueue(self, what: str) -> None:
        self.cuda.ahead_of[what] = set(self.ahead)
        self.ahead.add(what)


@dataclass
class Event:
    ahead: set[str] | None = None


@dataclass
class Cuda:
    """As much of ``torch.cuda`` as launches on streams take: nothing that makes the host wait.

    Attributes:
        ahead_of: of everything enqueued, what it follows.
    """

    ahead_of: dict[str, set[str]] = field(default_factory=dict)
    made: list[Stream] = field(default_factory=list)
    Event: type[Event] = Event

    range: tuple[int, int] = (0, -3)

    def __post_init__(self) -> None:
        self.now = Stream(self, legacy=True)
        self.Stream = Streamlike(self)

    def current_stream(self) -> Stream:
        return self.now

    def set_stream(self, stream: Stream) -> None:
        self.now = stream


@dataclass
class Streamlike:
    """The class of streams."""

    cuda: Cuda

    def __call__(self, priority: int = 0) -> Stream:
        least, greatest = self.cuda.range
        assert greatest <= priority <= least, "no priority of this device"
        self.cuda.made.append(Stream(self.cuda, priority=priority))
        return self.cuda.made[-1]

    def priority_range(self) -> tuple[int, int]:
        return self.cuda.range


@dataclass
class Launch:
    cuda: Cuda
    name: str

    def run(self) -> None:
        assert not self.cuda.now.legacy, "a kernel on the stream of the caller"
        self.cuda.now.enqueue(self.name)


@settings(EXAMPLES, max_examples=100)
@given(dags(12))
def test_launches_follow_what_they_depend_on_and_runs_follow_each_other(before: Before) -> None:
    n, cuda = len(before), Cuda()
    made = Streams.from_predecessors(before, [1.0] * n, 3)
    fork = StreamFork(cuda, made)
    main = cuda.now
    for run in range(2):
        main.enqueue(f"before {run}")
        fork.run([Launch(cuda, f"{run}:{o}") for o in range(n)])  # type: ignore[arg-type]
        assert cuda.now is main
        main.enqueue(f"after {run}")
    for run in range(2):
        mine = {f"{run}:{o}" for o in range(n)}
        assert mine <= cuda.ahead_of[f"after {run}"]
        for o in range(n):
            assert f"before {run}" in cuda.ahead_of[f"{run}:{o}"]
            follows = {u for u, v in find_needed(before) if v == o}
            assert {f"{run}:{u}" for u in follows} <= cuda.ahead_of[f"{run}:{o}"]
    assert {f"0:{o}" for o in range(n)} <= cuda.ahead_of["1:0"], "the next run overwrites what this one reads"
    assert len(cuda.made) == made.count <= 3


def test_what_does_not_depend_on_each_other_is_not_ordered() -> None:
    made, cuda = assign_streams(build_gated(), il.H200), Cuda()
    StreamFork(cuda, made).run([Launch(cuda, op.name) for op in build_gated().ops])  # type: ignore[arg-type]
    assert cuda.ahead_of == {"gate": set(), "up": set(), "mul": {"gate", "up"}, "down": {"gate", "up", "mul"}}
    assert (made.count, [len(earlier) for earlier in made.awaited_ops]) == (2, [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("device", "priorities"),
    [
        ((0, -5), [-3, -2, -1, 0]),
        ((0, -3), [-3, -2, -1, 0]),
        ((0, -2), [-2, -1, 0, 0]),
        ((0, 0), [0, 0, 0, 0]),
    ],
)
def test_the_critical_path_comes_first(device: tuple[int, int], priorities: list[int]) -> None:
    """Ops 0 - 4 - 5 take 9, 1 - 5 take 8, 2 takes 5 and 3 takes 1."""
    before: Before = [set(), set(), set(), set(), {0}, {1, 4}]
    made = Streams.from_predecessors(before, [2, 5, 5, 1, 4, 3], 8)
    cuda = Cuda(range=device)
    fork = StreamFork(cuda, made)
    assert [fork._streams[made.stream[op]].priority for op in range(4)] == priorities
    assert made.stream[0] == made.stream[4] == made.stream[5]


def test_ops_that_take_as_long_as_each_other_have_no_priority() -> None:
    made = Streams.from_predecessors([set()] * 20, [0.1 + 0.2, 0.3] * 10, 8)
    assert made.urgency == (0,) * 8
    assert made.compute_priorities(0, -5) == (0,) * 8
    assert Streams((0, 1), ((), ())).compute_priorities(0, -5) == (0, 0)


def test_a_chain_takes_one_stream_and_the_machine_models_it_as_serial() -> None:
    made = assign_streams(two_matmuls(), il.H200)
    assert (made.count, made.awaited_ops) == (1, ((), ()))
    assert il.StreamsExecutor.build_mode(two_matmuls(), il.H200) == slow_to_plain_bodies(SERIAL)
    mode = il.StreamsExecutor.build_mode(build_gated(), il.H200)
    assert mode.after == ((), (), (0, 1), (2,))


def test_an_event_that_is_missing_is_found_before_anything_is_launched() -> None:
    graph = build_gated()
    made = assign_streams(graph, il.H200)
    check_streams(graph, made)
    lost = replace(made, after=((), (), tuple(u for u in made.after[2] if u not in made.awaited_ops[2]), (2,)))
    ((waits_for,),) = (earlier for earlier in made.awaited_ops if earlier)
    message = f"op 'mul' on stream .* depends on op '{graph.ops[waits_for].name}' on stream .*, and no event makes it"
    with pytest.raises(CoverageError, match=message):
        check_streams(graph, lost)
    with pytest.raises(CoverageError, match="op 'down' on stream 1 depends on op 'mul' on stream 0"):
        check_streams(graph, Streams((0, 0, 0, 1), ((), (), (), ())))


def test_there_are_no_more_streams_than_queues_to_the_device() -> None:
    tensors = [il.Tensor(f"{name}{n}", (64, 64), il.fp32) for n in range(20) for name in "xy"]
    ops = tuple(il.copy(f"copy{n}", x, y) for n, (x, y) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)))
    names = tuple(t.name for t in tensors)
    made = assign_streams(il.Graph("copies", tuple(tensors), ops, names[::2], names[1::2]), il.H200)
    assert made.count == MAX_STREAMS == 8
    assert sorted(made.stream.count(s) for s in range(8)) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert len(made.final_ops) == 8


# ---------------------------------------------------------------- runs


@dataclass
class Slow:
    """An event that comes when somebody waits for it."""

    come: bool = False

    def query(self) -> bool:
        return self.come

    def synchronize(self) -> None:
        self.come = True


def test_a_run_is_asked_and_awaited() -> None:
    checked: Any = count()
    event = Slow()
    run = RunHandle(event, False, lambda: next(checked))  # type: ignore[arg-type]

    async def wait() -> bool:
        before = run.is_done()
        await run
        return before

    assert [asyncio.run(wait()), run.is_done()] == [False, True]
    assert next(checked) == 1
    assert RunHandle(None, False, lambda: None).is_done()


def test_awaiting_a_run_raises_what_the_watchdog_found() -> None:
    def raise_hang() -> None:
        raise HangError("stuck", item=0, semaphore=0, expected=1, seen=0, producer=None)

    async def wait() -> None:
        await RunHandle(Slow(), False, raise_hang)  # type: ignore[arg-type]

    with pytest.raises(HangError, match="stuck"):
        asyncio.run(wait())


def test_a_captured_run_has_no_end_of_its_own() -> None:
    run = RunHandle(None, True, lambda: None)
    with pytest.raises(DeviceError, match="captured into a CUDA graph"):
        run.is_done()

    async def wait() -> None:
        await run

    with pytest.raises(DeviceError, match="record an event behind a replay"):
        asyncio.run(wait())
