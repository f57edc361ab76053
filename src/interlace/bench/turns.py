"""Turns at a GPU that several processes of a measurement share.

Most of a measurement is no work for the GPU: inputs are drawn, plans proved, functions traced, kernels compiled. So
several processes measure on one GPU at once, and whatever is timed, or takes long there, is done in a turn, in which
the others wait before they do the like. What torch.compile times to choose among kernels takes a turn each time too:
it chooses as if it were alone. Outside of turns the others at most load kernels and call once what they compiled, which
the median of many rounds does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.synchronize import RLock
from typing import Any

_lock: RLock | None = None  # of this process's GPU; None if no other process measures there


def share(lock: RLock) -> None:
    """From here on this process shares its GPU with those that have the same lock."""
    global _lock
    _lock = lock


@contextmanager
def alone() -> Iterator[None]:
    """A turn; turns within one belong to it."""
    if _lock is None:
        yield
        return
    with _lock:
        yield


def autotune_alone() -> None:
    """From here on whatever torch.compile times in this process is timed in turns."""
    if _lock is not None:
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
