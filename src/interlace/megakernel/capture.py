"""CUDA graph captures: the id of the current one, and work that must not become part of it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

from interlace.core.errors import DeviceError

T = TypeVar("T")

_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def get_capture_id() -> int:
    """Return the id of the capture that the current stream takes part in, unique in this process; 0 without one.

    Raises:
        DeviceError: the driver reports an error.
    """
    if not torch.cuda.is_current_stream_capturing():
        return 0
    # cuStreamGetCaptureInfo_v2(stream, *status, *id, *graph, **dependencies, *number): the last three may be null.
    # Dependencies must not be requested: edges of dependent launches carry data, and without room for these the driver
    # returns CUDA_ERROR_LOSSY_QUERY.
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _call_driver(
        "cuStreamGetCaptureInfo_v2", stream, ctypes.byref(status), ctypes.byref(number), *[ctypes.c_void_p()] * 3
    )
    return number.value


@contextmanager
def capture_graph(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture what the current thread enqueues, while no other thread captures in this way.

    Graphs of one memory pool (``torch.cuda.graph_pool_handle``) share their memory; by default a graph has its own.

    Garbage collection is off meanwhile: if the garbage includes a CUDA graph, its destruction would end the capture,
    and recent releases of PyTorch no longer collect garbage before a capture.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collects:
            gc.enable()


def run_outside_capture(device: torch.device, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which may allocate, copy and load kernels even while the caller captures a graph.

    It runs in a thread and on a stream of its own, and is complete on the device when this returns. So none of it is
    captured, and its tensors come from the ordinary memory pool: PyTorch chooses the pool by the stream that captures,
    or, while ``torch.compile`` warms up a graph, by the thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_relaxed, device, work).result()


def _run_relaxed(device: torch.device, work: Callable[[], T]) -> T:
    if device.type != "cuda":
        return work()
    # Allocations invalidate captures, even those of other threads, unless this thread's mode is relaxed.
    _call_driver("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_CAPTURE_MODE_RELAXED)))
    with torch.cuda.device(device), torch.cuda.stream(_find_free_stream()):
        result = work()
        torch.cuda.current_stream().synchronize()
    return result


def _find_free_stream() -> torch.cuda.Stream:
    """Return a stream of PyTorch's that no capture uses; PyTorch hands out the same few in turn to all callers."""
    while True:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream


@cache
def _load_driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call_driver(function: str, *arguments: Any) -> None:
    status = getattr(_load_driver(), function)(*arguments)
    if status:
        raise DeviceError(f"{function} failed with error {status}; is the driver older than CUDA 11.3?")
