"""Run several measurements at once on the GPUs of a host."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

from interlace.bench import gpu_lock
from interlace.core.arguments import check_int
from interlace.core.errors import ArgumentError
from interlace.executors.gpu import open_device

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_on_gpus(
    function: Callable[[Job], Result], jobs: Iterable[Job], gpus: int = 1, share: int = 1
) -> Iterator[tuple[Job, Result]]:
    """Apply a function to every job and yield each job with its result, in the order of completion.

    A job is taken from ``jobs`` when a process is free for it, so an iterator can end the jobs early. With several
    GPUs, or several processes per GPU, the function runs in processes that see one GPU each. The function and its jobs
    are pickled to them. Processes that share a GPU take ``turns`` at it.

    Args:
        function: function that measures on the current CUDA device.
        jobs: jobs to measure.
        gpus: number of GPUs to use.
        share: number of processes per GPU.

    Raises:
        ArgumentError: there are fewer GPUs.
        NoDeviceError: there is no GPU.
        Exception: whatever the function raised.
    """
    check_int(gpus, "run_on_gpus", "gpus")
    torch, _ = open_device("cuda")
    if not 1 <= gpus <= torch.cuda.device_count():
        raise ArgumentError(f"{gpus} GPUs are asked for and {torch.cuda.device_count()} are here; use these at most")
    if gpus == share == 1:
        for job in jobs:
            yield job, function(job)
        return
    context = get_context("spawn")
    seats = context.SimpleQueue()
    for place in range(share):
        for gpu, name in enumerate(_list_visible(gpus)):
            seats.put((name, gpu, place))
    shared = [gpu_lock.GpuLock(context, share) for _ in range(gpus)] if share > 1 else []
    left, count = iter(jobs), gpus * share
    with ProcessPoolExecutor(count, context, _start_process, (seats, shared, _count_cpus(count))) as pool:
        running: dict[Future[Result], Job] = {
            pool.submit(_run_and_free, function, job): job for job in islice(left, count)
        }
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                job, result = running.pop(future), future.result()
                running |= {pool.submit(_run_and_free, function, after): after for after in islice(left, 1)}
                yield job, result


def count_processes(gpus: int, cpus: int) -> int:
    """Return how many processes that each use this number of CPUs fit on each of the GPUs."""
    return max(1, _count_cpus(gpus) // cpus)


def _count_cpus(count: int) -> int:
    """Return the number of CPUs for each of this number of processes."""
    return max(1, (os.cpu_count() or 1) // count)


def _list_visible(gpus: int) -> list[str]:
    """Return the driver's names of the first GPUs that this process sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:gpus] if named else [str(n) for n in range(gpus)]


def _start_process(seats: Any, shared: Sequence[gpu_lock.GpuLock], cpus: int) -> None:
    """Initialise a new process: see one GPU, take turns if it is shared, and limit torch to this number of CPUs."""
    name, gpu, place = seats.get()
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(cpus)
    if shared:
        gpu_lock.share_gpu(gpu_lock.GpuLockHandle(shared[gpu], place))


def _run_and_free(function: Callable[[Job], Result], job: Job) -> Result:
    """Return the result of a function for a job, and free unused memory for other processes."""
    gpu_lock.begin_job()
    try:
        return function(job)
    finally:
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()
