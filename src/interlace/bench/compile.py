"""Parallel compilation of launches ahead of their first run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from interlace.executors.device import DeviceExecutor


def compile_launches(makers: Sequence[Callable[[], DeviceExecutor]], pool: Executor | None = None) -> Iterator[int]:
    """Compile the launches of all executors in parallel into Triton's cache; yield how many executors are left.

    Compile errors are ignored; the first run of the launch reports them.

    Args:
        makers: functions that make one executor each; they are pickled to other processes.
        pool: pool from ``open_pool``; None for a temporary one with up to one process per maker.
    """
    if pool is None:
        with open_pool(len(makers)) as own:
            yield from compile_launches(makers, own)
        return
    for done, _ in enumerate(as_completed([pool.submit(_compile, make) for make in makers]), 1):
        yield len(makers) - done


def open_pool(max_processes: int | None = None, share: int = 1) -> Executor:
    """Return a pool of compiling processes, at most ``max_processes``: two fewer than its share of the CPUs.

    Each process has a GPU context.

    Args:
        share: number of such pools on the machine at once.
    """
    count = max(1, (os.cpu_count() or 2) // share - 2)
    return ProcessPoolExecutor(
        count if max_processes is None else max(1, min(count, max_processes)), mp_context=get_context("spawn")
    )


def _compile(make: Callable[[], DeviceExecutor]) -> None:
    for launch in make().build_launches():
        launch.compile()
