"""Executors: ways to run a verified plan. Device executors import torch and triton when they are constructed.

To add one, write a subclass of ``Executor`` that sets its class attributes, and add a line to ``EXECUTORS``.
"""

from __future__ import annotations

from interlace.executors.base import Executor
from interlace.executors.device import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentStaticExecutor, PersistentTicketExecutor
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import CudaGraphExecutor, PdlExecutor, SerialExecutor
from interlace.executors.streams import StreamsExecutor

__all__ = ["EXECUTORS", "SINGLE_LAUNCH_EXECUTORS", "DeviceExecutor", "Executor"]

#: All executors, in the order in which tables show them.
EXECUTORS: tuple[type[Executor], ...] = (
    ReferenceExecutor,
    RandomReferenceExecutor,
    SerialExecutor,
    CudaGraphExecutor,
    PdlExecutor,
    StreamsExecutor,
    SemaphoreStreamsExecutor,
    PersistentStaticExecutor,
    PersistentTicketExecutor,
    MegakernelExecutor,
)
#: Executors that run a whole graph in one launch, fastest first. The default is chosen from these.
SINGLE_LAUNCH_EXECUTORS: tuple[type[DeviceExecutor], ...] = (MegakernelExecutor, PersistentTicketExecutor)
