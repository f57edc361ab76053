"""Several measurements at once, one on each GPU of a host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

from interlace.core.arguments import whole
from interlace.core.errors import ArgumentError
from interlace.executors.gpu import open_device

Job = TypeVar("Job")
Result = TypeVar("Result")


def on_gpus(function: Callable[[Job], Result], jobs: Iterable[Job], gpus: int = 1) -> Iterator[tuple[Job, Result]]:
    """Every job with what a function makes of it, in the order in which they end.

    A job is taken from ``jobs`` when a GPU is free for it, so an iterator can end them early. With several GPUs the
    function runs in processes that see one each, and it and its jobs are sent there by pickle.

    Args:
        function: measures on the current CUDA device.
        jobs: what to measure.
        gpus: how many to use.

    Raises:
        ArgumentError: there are fewer.
        NoDeviceError: there is none.
        Exception: what the function raised.
    """
    whole(gpus, "on_gpus", "gpus")
    torch, _ = open_device("cuda")
    if not 1 <= gpus <= torch.cuda.device_count():
        raise ArgumentError(f"{gpus} GPUs are asked for and {torch.cuda.device_count()} are here; use these at most")
    if gpus == 1:
        for job in jobs:
            yield job, function(job)
        return
    context = get_context("spawn")
    numbers = context.SimpleQueue()
    for name in _visible(gpus):
        numbers.put(name)
    left = iter(jobs)
    with ProcessPoolExecutor(gpus, context, _take, (numbers,)) as pool:
        running: dict[Future[Result], Job] = {pool.submit(function, job): job for job in islice(left, gpus)}
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                job, result = running.pop(future), future.result()
                running |= {pool.submit(function, after): after for after in islice(left, 1)}
                yield job, result


def _visible(gpus: int) -> list[str]:
    """What the driver calls the first GPUs that this process sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:gpus] if named else [str(n) for n in range(gpus)]


def _take(numbers: Any) -> None:
    """In a new process: see one GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = numbers.get()
