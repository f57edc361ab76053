"""Assignment of compiled plans to calls.

A compiled plan owns its semaphores and workspace, so an instance may run on one stream at a time. Calls on one
stream run in order, from whichever layer, and share an instance. A captured graph may be replayed on any stream at
any time, so it shares no instance: the keys of its instances hold the id of its capture.

An instance is built when a call first needs it, outside any capture in progress (``run_outside_capture``). Inside a
capture, its tables and zeroed counters would become nodes of the graph, and its memory part of the graph's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import NamedTuple, Protocol

import torch

from interlace.core.dtypes import DType
from interlace.megakernel.capture import run_outside_capture
from interlace.workloads.ffn import FFNShape

Tensors = Mapping[str, torch.Tensor]


class Key(NamedTuple):
    """Key of an instance: what it is built for, and which calls may run it.

    Attributes:
        device: device with its index.
        stream: driver handle of the stream.
        capture: id of the capture in progress on the stream, 0 for none.
        rows: maximum number of tokens.
        shape, dtype, bias: properties of the FFN.
    """

    device: torch.device
    stream: int
    capture: int
    rows: int
    shape: FFNShape
    dtype: DType
    bias: bool


class Instance(Protocol):
    """Interface of ``DeviceExecutor`` that this module uses."""

    @property
    def is_running(self) -> bool: ...

    def run(self, tensors: Tensors) -> object: ...

    def release(self) -> None: ...


class Instances:
    """Cache of instances by key: those of captured graphs are kept forever, the others in LRU order.

    Args:
        make: function that builds the instance for a key and loads its kernels; it gets the tensors of the first run.
        limit: maximum number of instances outside captures. More are kept while all of them run.
    """

    def __init__(self, make: Callable[[Key, Tensors], Instance], limit: int = 128) -> None:
        self._make = make
        self._limit = limit
        self._captured: dict[Key, Instance] = {}
        self._eager: dict[Key, Instance] = {}  # most recently used last
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._captured) + len(self._eager)

    def run(self, key: Key, tensors: Tensors) -> None:
        """Enqueue one run on the current stream, by the instance for the key.

        Raises:
            InterlaceError: building the instance or ``DeviceExecutor.run`` fails.
        """
        with self._lock:
            kept = self._captured if key.capture else self._eager
            instance = kept.pop(key, None) or run_outside_capture(key.device, lambda: self._build(key, tensors))
            kept[key] = instance
            instance.run(tensors)
            # An instance must keep no tensors alive: weights of a model that is gone, or a graph's private memory.
            instance.release()

    def _build(self, key: Key, tensors: Tensors) -> Instance:
        if not key.capture:
            # The device may still use what a running instance owns, on a stream that the allocator does not associate
            # with that memory, so only an idle instance can be dropped. The query would invalidate a capture elsewhere,
            # but this function runs outside captures (``run_outside_capture``).
            excess = len(self._eager) - self._limit + 1
            resting = [old for old, instance in self._eager.items() if not instance.is_running]
            for old in resting[: max(excess, 0)]:
                del self._eager[old]
        return self._make(key, tensors)
