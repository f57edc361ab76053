"""Launches of the megakernel on some tensors: operands go in the kernel's parameter or, if too large, in memory.

Executors enqueue both (``executors/launch.CudaSourceLaunch``); the composition decides which one is used.
Launches that occupy all SMs take turns: two at once could each wait for an SM that the other holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

from interlace.kernels.cuda.compiler import CudaBinary

_lock = threading.Lock()
_last_streams: dict[Any, Any] = {}  # device -> stream of the last launch that occupies all its SMs


@contextmanager
def serialize_launch(cuda: Any, device: Any) -> Iterator[None]:
    """Enqueue a launch that occupies all SMs on the current stream in this context, after all others of this process.

    The next turn begins only once the launch is on its stream, because a stream that waits for another waits for what
    is on it at that time.

        thread 0    turn on stream a: [ launch ]
        thread 1                                 turn on stream b: [ b waits for a; launch ]

    Launches in captured graphs are not tracked: callers that replay graphs on several streams at once must order them.

    Args:
        cuda: ``torch.cuda``.
        device: device whose SMs the launch occupies.
    """
    if cuda.is_current_stream_capturing():
        yield
        return
    current = cuda.current_stream()
    with _lock:
        last = _last_streams.get(device)
        if last is not None and last != current:
            current.wait_stream(last)
        yield
        _last_streams[device] = current


class _TensorLaunch:
    """Base of both launches.

    Args:
        executor: executor whose launch it is.
        arguments: each op with its tensors.
    """

    def __init__(self, executor: Any, arguments: tuple[Any, ...]) -> None:
        self._executor = executor
        self._arguments = arguments

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which must be the current one."""
        executor, enqueue = self._executor, self.enqueue
        with serialize_launch(executor.torch.cuda, executor.device) if executor.is_resident else nullcontext():
            enqueue(stream)

    def compile(self) -> CudaBinary:
        """Compile; needs no device."""
        binary: CudaBinary = self._executor.binary
        return binary

    def load(self) -> None:
        """Compile and load for the current device, and copy to it what the launch needs."""
        self.enqueue  # noqa: B018

    @cached_property
    def enqueue(self) -> Callable[[int], None]:
        """Function that enqueues the launch on a stream; it keeps neither tensors nor the executor alive."""
        executor = self._executor
        enqueue: Callable[[int], None] = executor.loaded_kernel.prepare(
            (executor.workers, 1, 1),
            executor.threads,
            [executor.pack_parameter(self._packed_operands)],
            dependent=executor.options.dependent_launch,
            cluster=executor.placement_size,
        )
        return enqueue

    @property
    def _packed_operands(self) -> Any:
        """Operands as bytes in the format of the launch's parameter."""
        return self._executor.pack_operands(self._arguments)


class ParameterLaunch(_TensorLaunch):
    """A launch whose parameter contains its operands, so that none are in device memory.

    Args:
        executor, arguments: as for the base.
        enqueue: enqueue function of an earlier launch on tensors with the same locations and layouts, if any.
    """

    def __init__(self, executor: Any, arguments: tuple[Any, ...], enqueue: Callable[[int], None] | None = None) -> None:
        super().__init__(executor, arguments)
        if enqueue is not None:
            self.enqueue = enqueue


class MemoryLaunch(_TensorLaunch):
    """A launch whose operands are in device memory."""

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which must be the current one."""
        executor, cuda = self._executor, self._executor.torch.cuda
        self._packed_operands.record_stream(cuda.current_stream())
        if cuda.is_current_stream_capturing():
            executor.captured.append(self._packed_operands)
        executor.clear_outputs(self._arguments)
        super().__call__(stream)

    @cached_property
    def _packed_operands(self) -> Any:
        """Operands as a tensor in device memory. It may be built during the capture of a run on new tensors."""
        from interlace.megakernel.capture import run_outside_capture  # imports torch

        executor, torch = self._executor, self._executor.torch
        packed = torch.frombuffer(bytearray(executor.pack_operands(self._arguments)), dtype=torch.uint8)
        return run_outside_capture(executor.device, lambda: packed.to(executor.device))
