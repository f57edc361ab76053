"""Launches compiled ahead, many at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from interlace.executors.device import DeviceExecutor


def compile_launches(makers: Sequence[Callable[[], DeviceExecutor]], pool: Executor | None = None) -> Iterator[int]:
    """Compile the launches of every executor in parallel, into Triton's cache; yields how many are left.

    What does not compile is left to its first run, which reports it.

    Args:
        makers: make an executor each; other processes get them by pickle.
        pool: of ``compilers``; by default one of its own, of as many processes as there is work for.
    """
    if pool is None:
        with compilers(len(makers)) as own:
            yield from compile_launches(makers, own)
        return
    for done, _ in enumerate(as_completed([pool.submit(_compile, make) for make in makers]), 1):
        yield len(makers) - done


def compilers(most: int | None = None, share: int = 1) -> Executor:
    """Processes that compile: all but two of the CPUs, and no more than ``most``. Each takes a GPU context.

    Args:
        share: how many such pools the machine has at once.
    """
    count = max(1, (os.cpu_count() or 2) // share - 2)
    return ProcessPoolExecutor(count if most is None else max(1, min(count, most)), mp_context=get_context("spawn"))


def _compile(make: Callable[[], DeviceExecutor]) -> None:
    for launch in make().launches():
        launch.compile()
