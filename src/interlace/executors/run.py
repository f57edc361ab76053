"""A run that was enqueued: whether it has ended, and ways to wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlace.core.errors import DeviceError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a device executor, as ``run`` gives it. Nothing here holds up the host but what says so.

    Attributes:
        event: recorded behind the run on the stream where it was enqueued, for other streams to wait for
            (``stream.wait_event(run.event)``); None if it had ended before ``run`` returned, as under the interpreter.
        captured: it was captured into a CUDA graph rather than run.
        check: raises what the watchdog found, or why a launch ended itself.

    An asyncio program awaits it, and the event loop goes on meanwhile:

        await executor.run(tensors)
    """

    event: torch.cuda.Event | None
    captured: bool
    check: Callable[[], None]

    def done(self) -> bool:
        """Whether it has ended; asks without waiting.

        Raises:
            DeviceError: it was captured.
            LaunchEndedError: it, or another run of the executor, ended itself.
        """
        self._refuse_captured()
        try:
            return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            self.check()
            raise

    def __await__(self) -> Generator[object, None, None]:
        """Go on when it has ended.

        Raises:
            DeviceError: it was captured.
            HangError: a wait of it, or of another run of the executor, ended by the watchdog.
            LaunchEndedError: it, or another run of the executor, ended itself.
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
        if self.captured:
            raise DeviceError(
                "this run was captured into a CUDA graph, whose replays it knows nothing of; record an event behind "
                "a replay and ask that"
            )
