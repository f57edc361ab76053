"""Executors: ways to run a verified plan. Device executors import torch and triton when they are made.

A new one is a class that says of itself what ``Executor`` asks, and a line in ``EXECUTORS``.
"""

from __future__ import annotations

from interlace.executors.base import Executor
from interlace.executors.cuda_graph import CudaGraphExecutor
from interlace.executors.device import DeviceExecutor
from interlace.executors.one_launch import OneLaunchExecutor
from interlace.executors.persistent import PersistentStaticExecutor, PersistentTicketExecutor
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import PdlExecutor, SerialExecutor
from interlace.executors.streams import StreamsExecutor

__all__ = ["EXECUTORS", "ONE_LAUNCH", "DeviceExecutor", "Executor"]

#: All of them, as tables show them.
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
    OneLaunchExecutor,
)
#: Those that run a whole graph as one launch and are taken where none is named, the fastest first.
ONE_LAUNCH: tuple[type[DeviceExecutor], ...] = (OneLaunchExecutor, PersistentTicketExecutor)
