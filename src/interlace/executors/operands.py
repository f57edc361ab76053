"""The one launch on some tensors: it has its operands with it, or, where these are too many, their address.

Both are what an executor enqueues (``executors/launch.TextLaunch``); which one, its composition tells.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

from interlace.executors.turns import turn
from interlace.kernels.cuda.compiler import Binary


class _OnTensors:
    """What both have in common.

    Args:
        executor: whose launch it is.
        arguments: each op with its tensors.
    """

    def __init__(self, executor: Any, arguments: tuple[Any, ...]) -> None:
        self._executor = executor
        self._arguments = arguments

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which is the current one."""
        executor, enqueue = self._executor, self.enqueue
        with turn(executor._torch.cuda, executor._device) if executor._resident else nullcontext():
            enqueue(stream)

    def compile(self) -> Binary:
        """Compile, which needs no device."""
        binary: Binary = self._executor.binary
        return binary

    def load(self) -> None:
        """Compile and load for the current device, and put there what the launch takes."""
        self.enqueue  # noqa: B018

    @cached_property
    def enqueue(self) -> Callable[[int], None]:
        """What enqueues it on a stream; it keeps neither tensors nor the executor alive."""
        executor = self._executor
        enqueue: Callable[[int], None] = executor.loaded.prepared(
            (executor._table.workers, 1, 1),
            executor._threads,
            [executor._parameter(self._operands)],
            dependent=executor.options.dependent_launch,
            cluster=executor.placed_together,
        )
        return enqueue

    @property
    def _operands(self) -> Any:
        """As the launch's parameter takes them: the bytes."""
        return self._executor._operands(self._arguments)


class WithOperands(_OnTensors):
    """The launch on some tensors, whose operands it has with it: nothing lies in the device's memory.

    Args:
        executor, arguments: as of both.
        enqueue: of a launch of the executor on tensors that lay like these, which is all that it takes of them.
    """

    def __init__(
        self, executor: Any, arguments: tuple[Any, ...], enqueue: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(executor, arguments)
        if enqueue is not None:
            self.enqueue = enqueue


class OperandsInMemory(_OnTensors):
    """The launch on some tensors, whose operands lie in the device's memory."""

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which is the current one."""
        executor, cuda = self._executor, self._executor._torch.cuda
        self._operands.record_stream(cuda.current_stream())
        if cuda.is_current_stream_capturing():
            executor._captured.append(self._operands)
        executor._clear(self._arguments)
        super().__call__(stream)

    @cached_property
    def _operands(self) -> Any:
        """Their address: a tensor. Runs of tensors that come anew may be captured."""
        from interlace.executors.capture import beside_captures  # imports torch

        executor, torch = self._executor, self._executor._torch
        packed = torch.frombuffer(bytearray(executor._operands(self._arguments)), dtype=torch.uint8)
        return beside_captures(executor._device, lambda: packed.to(executor._device))
