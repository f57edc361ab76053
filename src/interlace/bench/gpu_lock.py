"""Turns at a GPU that several measuring processes share.

Most of a measurement is host work: drawing inputs, proving plans, tracing functions, compiling kernels. So several
processes measure on one GPU at once. Whatever is timed, or occupies the GPU for long, runs in a turn, and other
processes wait with such work until it ends. Each timing by which torch.compile chooses among kernels also takes a turn,
so it chooses as if it were alone. Outside of turns, processes at most load kernels and run each compiled function once,
which does not affect the median of many rounds.

Of the waiting processes, the one whose job began first is next, so that jobs finish one after another, not all at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.context import SpawnContext
from typing import Any


class GpuLock:
    """Turns at one GPU for several processes, which receive it by pickle when they start.

    Args:
        context: multiprocessing context of the processes.
        processes: number of processes.
    """

    def __init__(self, context: SpawnContext, processes: int) -> None:
        self._changed = context.Condition()
        # Job number, from 1, of each waiting process; 0 for the others.
        self._waiting = context.RawArray("q", processes)
        self._jobs, self._taken = context.RawValue("q", 0), context.RawValue("b", 0)

    def next_job(self) -> int:
        """Return the number of a job that begins."""
        with self._changed:
            self._jobs.value += 1
            return int(self._jobs.value)

    def acquire(self, place: int, job: int) -> None:
        """Wait for a turn, as the process at this place."""
        with self._changed:
            self._waiting[place] = job
            self._changed.wait_for(lambda: not self._taken.value and all(not 0 < n < job for n in self._waiting))
            self._waiting[place], self._taken.value = 0, 1

    def release(self) -> None:
        """End a turn."""
        with self._changed:
            self._taken.value = 0
            self._changed.notify_all()


class GpuLockHandle:
    """Place of one process in the turns at its GPU.

    Args:
        turns: turns at that GPU.
        place: index among its processes, from 0.
    """

    def __init__(self, turns: GpuLock, place: int) -> None:
        self._turns, self._place = turns, place
        self._job = self._depth = 0

    def begin_job(self) -> None:
        """Begin a new job."""
        self._job = self._turns.next_job()

    def __enter__(self) -> None:
        if not self._depth:
            self._turns.acquire(self._place, self._job)
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._turns.release()


_handle: GpuLockHandle | None = None  # handle of this process; None if no other process measures on its GPU


def share_gpu(seat: GpuLockHandle) -> None:
    """Share this process's GPU from now on, with turns."""
    global _handle
    _handle = seat


def begin_job() -> None:
    """Begin a new job of this process, queued after all jobs that have begun."""
    if _handle is not None:
        _handle.begin_job()


@contextmanager
def hold_gpu() -> Iterator[None]:
    """Hold a turn for the block; nested turns belong to the outer one."""
    if _handle is None:
        yield
        return
    with _handle:
        yield


def lock_autotuning() -> None:
    """From now on, take a turn for each timing by torch.compile in this process."""
    if _handle is not None:
        _install_hook()


@cache
def _install_hook() -> None:
    from torch._inductor.runtime import benchmarking

    hook = getattr(benchmarking, "set_gpu_benchmark_lock_context", None)
    if hook is not None:
        hook(hold_gpu)
        return
    # Before 2.13, torch has no such hook; it times all kernels with one method of this object.
    benchmarker: Any = benchmarking.benchmarker
    timed = benchmarker.benchmark_gpu

    def in_turn(*arguments: Any, **options: Any) -> Any:
        with hold_gpu():
            return timed(*arguments, **options)

    benchmarker.benchmark_gpu = in_turn
