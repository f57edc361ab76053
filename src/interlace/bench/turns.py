"""Turns at a GPU that several processes of a measurement share.

Most of a measurement is no work for the GPU: inputs are drawn, plans proved, functions traced, kernels compiled. So
several processes measure on one GPU at once, and whatever is timed, or takes long there, is done in a turn, in which
the others wait before they do the like. What torch.compile times to choose among kernels takes a turn each time too:
it chooses as if it were alone. Outside of turns the others at most load kernels and call once what they compiled, which
the median of many rounds does not see.

Of those who wait, whoever began its job first is next, so that jobs end one after another rather than all at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.context import SpawnContext
from typing import Any


class Turns:
    """At one GPU, for a number of processes; they get it by pickle when they start.

    Args:
        context: that the processes start in.
        processes: how many.
    """

    def __init__(self, context: SpawnContext, processes: int) -> None:
        self._changed = context.Condition()
        # Of each process that waits the number of its job, from 1; of others 0.
        self._waiting = context.RawArray("q", processes)
        self._jobs, self._taken = context.RawValue("q", 0), context.RawValue("b", 0)

    def number(self) -> int:
        """Of a job that begins."""
        with self._changed:
            self._jobs.value += 1
            return int(self._jobs.value)

    def take(self, place: int, job: int) -> None:
        """Wait for a turn, as the process of this place."""
        with self._changed:
            self._waiting[place] = job
            self._changed.wait_for(lambda: not self._taken.value and all(not 0 < n < job for n in self._waiting))
            self._waiting[place], self._taken.value = 0, 1

    def give_back(self) -> None:
        """End a turn."""
        with self._changed:
            self._taken.value = 0
            self._changed.notify_all()


class Seat:
    """A process's own at its GPU.

    Args:
        turns: of that GPU.
        place: among its processes, from 0.
    """

    def __init__(self, turns: Turns, place: int) -> None:
        self._turns, self._place = turns, place
        self._job = self._depth = 0

    def begin(self) -> None:
        """A new job."""
        self._job = self._turns.number()

    def __enter__(self) -> None:
        if not self._depth:
            self._turns.take(self._place, self._job)
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._turns.give_back()


_seat: Seat | None = None  # of this process; None if no other measures on its GPU


def share(seat: Seat) -> None:
    """From here on this process shares its GPU."""
    global _seat
    _seat = seat


def begin_job() -> None:
    """What follows is another job, behind all that have begun."""
    if _seat is not None:
        _seat.begin()


@contextmanager
def alone() -> Iterator[None]:
    """A turn; turns within one belong to it."""
    if _seat is None:
        yield
        return
    with _seat:
        yield


def autotune_alone() -> None:
    """From here on whatever torch.compile times in this process is timed in turns."""
    if _seat is not None:
        _hook()


@cache
def _hook() -> None:
    from torch._inductor.runtime import benchmarking

    hook = getattr(benchmarking, "set_gpu_benchmark_lock_context", None)
    if hook is not None:
        hook(alone)
        return
    # torch has no such hook before 2.13; there all kernels are timed by one method of this object.
    benchmarker: Any = benchmarking.benchmarker
    timed = benchmarker.benchmark_gpu

    def in_turn(*arguments: Any, **options: Any) -> Any:
        with alone():
            return timed(*arguments, **options)

    benchmarker.benchmark_gpu = in_turn
