"""Launches that hold all SMs: one behind the other, whatever streams they are on."""

from __future__ import annotations

from dataclasses import dataclass, field

from interlace.executors.turns import take_turn


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
