"""Errors of runs on a device: waits that the watchdog ended, and launches that ended themselves.

``errors`` also exports all of them, and shows the tree.
"""

from __future__ import annotations

from interlace.core.base_error import InterlaceError


class HangError(InterlaceError):
    """A wait on the device was ended by the watchdog, and the run with it; the next run starts from a clean state.

    Attributes:
        item: position of the waiting item in the plan's sequence.
        semaphore: index of the semaphore that did not reach its target.
        expected: posts that the wait needed in this run.
        seen: posts of this run that had arrived when the watchdog fired.
        producer: tile that never posted, as ``"op 'up', tile (3, 0)"``: the one waited for, or one that it waited for
            in turn. None if all have posted since: too late, or only after waits had ended. If these cases cannot be
            distinguished, the first tile that should have posted.
    """

    def __init__(
        self, message: str, *, item: int, semaphore: int, expected: int, seen: int, producer: str | None
    ) -> None:
        super().__init__(message)
        self.item = item
        self.semaphore = semaphore
        self.expected = expected
        self.seen = seen
        self.producer = producer


class LaunchEndedError(InterlaceError):
    """The megakernel ended itself by a trap because a block made no progress; the process's CUDA context is lost.

    Attributes:
        item: position in the plan's sequence of the item that did not end, or of the last item before the loads
            stopped; -1 if not even a worker's first item was loaded.
    """

    def __init__(self, message: str, *, item: int) -> None:
        super().__init__(message)
        self.item = item


class StageCountError(LaunchEndedError):
    """Two roles of a body of the megakernel took different numbers of stages of its ring for an item.

    Attributes:
        item: position of the item in the plan's sequence.
        extra_stages: stages that a role took beyond those of the loads ahead of waits; negative if fewer.
    """

    def __init__(self, message: str, *, item: int, extra_stages: int) -> None:
        super().__init__(message, item=item)
        self.extra_stages = extra_stages
