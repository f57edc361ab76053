"""A run that was enqueued: queries of its completion, and ways to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlace.core.errors import DeviceError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class RunHandle:
    """One run of a device executor, as ``run`` returns it. No method blocks the host unless stated.

    Attributes:
        event: event recorded after the run on its stream, for other streams to wait for
            (``stream.wait_event(run.event)``); None if the run ended before ``run`` returned, as under the interpreter.
        is_captured: True if the run was captured into a CUDA graph rather than executed.
        check: function that raises what the watchdog found, or why a launch ended itself.

    An asyncio program can await a run while the event loop continues:

        await executor.run(tensors)
    """

    event: torch.cuda.Event | None
    is_captured: bool
    check: Callable[[], None]

    def is_done(self) -> bool:
        """Return whether the run has ended, without waiting.

        Raises:
            DeviceError: the run was captured.
            LaunchEndedError: this run, or another run of the executor, ended itself.
        """
        self._refuse_captured()
        try:
            return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            self.check()
            raise

    def __await__(self) -> Generator[object, None, None]:
        """Wait until the run has ended, without blocking the event loop.

        Raises:
            DeviceError: the run was captured.
            HangError: a wait of this run, or of another run of the executor, ended by the watchdog.
            LaunchEndedError: this run, or another run of the executor, ended itself.
        """
        self._refuse_captured()
        try:
            if self.event is not None:
                yield from asyncio.to_thread(self.event.synchronize).__await__()
        except RuntimeError:
            self.check()
            raise
        self.check()

    def _refuse_captured(self) -> None:
        if self.is_captured:
            raise DeviceError(
                "this run was captured into a CUDA graph, whose replays it knows nothing of; record an event behind "
                "a replay and ask that"
            )
