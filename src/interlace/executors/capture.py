"""CUDA graph captures: which one is under way, and how to work beside it."""

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

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def capture_id() -> int:
    """The id of the capture that the current stream takes part in, unique in this process; 0 if there is none.

    Raises:
        DeviceError: the driver refuses to tell.
    """
    if not torch.cuda.is_current_stream_capturing():
        return 0
    # cuStreamGetCaptureInfo_v2(stream, *status, *id, *graph, **dependencies, *number): the last three may be null.
    # Dependencies must not be asked for: edges of dependent launches carry data, and without room for them the
    # driver answers CUDA_ERROR_LOSSY_QUERY.
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(
        "cuStreamGetCaptureInfo_v2", stream, ctypes.byref(status), ctypes.byref(number), *[ctypes.c_void_p()] * 3
    )
    return number.value


@contextmanager
def captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what the current thread enqueues, where no other thread captures so at the time.

    Garbage waits until that is done: a graph that is part of it would end the capture by being destroyed, and recent
    releases of PyTorch no longer collect it before.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield
    finally:
        if collects:
            gc.enable()


def beside_captures(device: torch.device, work: Callable[[], T]) -> T:
    """The result of ``work``, which may allocate, copy, and load kernels even while the caller captures a graph.

    It runs in a thread and on a stream of its own, complete on the device when this returns. Thus nothing of it is
    captured, and its tensors come from the ordinary memory pool: PyTorch chooses the pool by the stream that
    captures, or, where ``torch.compile`` warms up a graph, by the thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_relaxed, device, work).result()


def _relaxed(device: torch.device, work: Callable[[], T]) -> T:
    if device.type != "cuda":
        return work()
    # Allocations invalidate captures, those of other threads too, unless this thread's mode is relaxed.
    _check("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_RELAXED)))
    with torch.cuda.device(device), torch.cuda.stream(_stream()):
        result = work()
        torch.cuda.current_stream().synchronize()
    return result


def _stream() -> torch.cuda.Stream:
    """One of PyTorch's streams that no capture uses: it deals out the same few in turn, to everybody."""
    while True:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(function: str, *arguments: Any) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status:
        raise DeviceError(f"{function} failed with error {status}; is the driver older than CUDA 11.3?")
