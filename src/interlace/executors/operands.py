"""The one launch on some tensors: it has its operands with it, or, where these are too many, their address.

Both are what an executor enqueues (``executors/launch.TextLaunch``); which one, its composition tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from interlace.executors.turns import take_turn
from interlace.kernels.cuda.compiler import Binary


class WithOperands:
    """The launch on some tensors, whose operands it has with it: nothing lies in the device's memory.

    Args:
        executor: whose launch it is.
        arguments: each op with its tensors.
        enqueue: of a launch of the executor on tensors that lay like these, which is all that it takes of them.
    """

    def __init__(
        self, executor: Any, arguments: tuple[Any, ...], enqueue: Callable[[int], None] | None = None
    ) -> None:
        self._executor = executor
        self._arguments = arguments
        self._enqueue = enqueue

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which is the current one."""
        executor = self._executor
        if executor._resident:
            take_turn(executor._torch.cuda, executor._device)
        self.enqueue(stream)

    def compile(self) -> Binary:
        """Compile, which needs no device."""
        binary: Binary = self._executor.binary
        return binary

    def load(self) -> None:
        """Compile and load for the current device."""
        self.enqueue  # noqa: B018

    @property
    def enqueue(self) -> Callable[[int], None]:
        """What enqueues it on a stream; it keeps neither tensors nor the executor alive."""
        if self._enqueue is None:
            executor = self._executor
            self._enqueue = executor.loaded.prepared(
                (executor._table.workers, 1, 1),
                executor._threads,
                [executor._parameter(executor._operands(self._arguments))],
                dependent=executor.options.dependent_launch,
                cluster=executor.options.cluster.blocks,
            )
        return self._enqueue


@dataclass(frozen=True)
class OperandsInMemory:
    """The launch on some tensors, whose operands lie in the device's memory."""

    executor: Any
    arguments: tuple[Any, ...]

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, which is the current one."""
        executor, cuda = self.executor, self.executor._torch.cuda
        self._operands.record_stream(cuda.current_stream())
        if cuda.is_current_stream_capturing():
            executor._captured.append(self._operands)
        executor._clear(self.arguments)
        if executor._resident:
            take_turn(cuda, executor._device)
        executor.loaded.launch(
            (executor._table.workers, 1, 1),
            executor._threads,
            [self._parameter],
            stream,
            dependent=executor.options.dependent_launch,
            cluster=executor.options.cluster.blocks,
        )

    @cached_property
    def _operands(self) -> Any:
        """In device memory; runs of tensors that come anew may be captured."""
        from interlace.executors.capture import beside_captures  # imports torch

        executor, torch = self.executor, self.executor._torch
        packed = torch.frombuffer(bytearray(executor._operands(self.arguments)), dtype=torch.uint8)
        return beside_captures(executor._device, lambda: packed.to(executor._device))

    @cached_property
    def _parameter(self) -> bytes:
        packed: bytes = self.executor._parameter(self._operands)
        return packed

    def compile(self) -> Binary:
        """Compile, which needs no device."""
        binary: Binary = self.executor.binary
        return binary

    def load(self) -> None:
        """Compile and load for the current device, and put there what the launch takes."""
        self.executor.loaded  # noqa: B018
        self._parameter  # noqa: B018
