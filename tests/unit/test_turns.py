"""Launches that hold all SMs: one behind the other, whatever streams they are on."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from interlace.executors.turns import turn


@dataclass(eq=False)
class Stream:
    """Remembers what it was put behind."""

    behind: list[Stream] = field(default_factory=list)

    def wait_stream(self, other: Stream) -> None:
        self.behind.append(other)


@dataclass
class Cuda:
    """As ``torch.cuda``, on a stream that may be captured."""

    stream: Stream
    captured: bool = False

    def current_stream(self) -> Stream:
        return self.stream

    def is_current_stream_capturing(self) -> bool:
        return self.captured


def take_turn(cuda: Cuda, device: object) -> None:
    with turn(cuda, device):
        pass


def test_a_launch_stands_behind_the_last_one_of_another_stream_and_of_its_own_device_alone() -> None:
    first, second, device, other = Stream(), Stream(), object(), object()
    for stream in (first, first, second, second, first):
        take_turn(Cuda(stream), device)
    take_turn(Cuda(second), other)
    assert (first.behind, second.behind) == ([second], [first])


def test_launches_that_a_capture_holds_are_no_turns() -> None:
    first, second, device = Stream(), Stream(), object()
    take_turn(Cuda(first), device)
    take_turn(Cuda(second, captured=True), device)
    take_turn(Cuda(first), device)
    assert (first.behind, second.behind) == ([], [])


def test_a_turn_lasts_until_its_launch_is_on_the_stream() -> None:
    """Else another thread's stream would wait for this one as it was before the launch, and both would run at once."""
    first, second, device, begun = Stream(), Stream(), object(), threading.Event()
    launched: list[str] = []

    def other() -> None:
        begun.set()
        with turn(Cuda(second), device):
            launched.append("second")

    with turn(Cuda(first), device):
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        thread.join(0.05)  # which it would come to an end in, if it did not wait
        launched.append("first")
    thread.join()
    assert launched == ["first", "second"]
    assert second.behind == [first]


def test_a_launch_that_fails_takes_no_turn() -> None:
    first, second, device = Stream(), Stream(), object()
    with suppress(ValueError), turn(Cuda(first), device):
        raise ValueError
    take_turn(Cuda(second), device)
    assert second.behind == []
