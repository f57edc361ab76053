"""Launches compiled ahead, many at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from interlace.executors.device import DeviceExecutor


def compile_launches(makers: Sequence[Callable[[], DeviceExecutor]], processes: int | None = None) -> Iterator[int]:
    """Compile the launches of every executor in parallel, into Triton's cache; yields how many are left.

    Takes a GPU context per process. What does not compile is left to its first run, which reports it.

    Args:
        makers: make an executor each; other processes get them by pickle.
        processes: how many at a time; by default all but two of the CPUs.
    """
    count = processes or max(1, min(len(makers), (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for done, _ in enumerate(as_completed([pool.submit(_compile, make) for make in makers]), 1):
            yield len(makers) - done


def _compile(make: Callable[[], DeviceExecutor]) -> None:
    for launch in make().launches():
        launch.compile()
