"""Errors of runs on a device: of waits that the watchdog ended, and of launches that ended themselves.

``errors`` has all of them too, and the tree.
"""

from __future__ import annotations

from interlace.core.base_error import InterlaceError


class HangError(InterlaceError):
    """A wait on the device ended by the watchdog, and with it the run; the next one starts afresh.

    Attributes:
        item: position of the waiting item in the plan's sequence.
        semaphore: index of the semaphore that did not reach its target.
        expected: posts that the wait needed in this run.
        seen: posts of this run that had arrived when the watchdog fired.
        producer: the tile that never posted, as ``"op 'up', tile (3, 0)"``: what was waited for, or what that waited
            for in turn. None if all have posted since: too late, or only once waits had ended. Where that cannot be
            told apart, the first that should have posted.
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
    """The one launch ended itself by a trap, as a block came no further; the process has no CUDA context any more.

    Attributes:
        item: position in the plan's sequence of the item that did not end, or behind which nothing was loaded; -1 if
            a worker's first was not.
    """

    def __init__(self, message: str, *, item: int) -> None:
        super().__init__(message)
        self.item = item


class StageCountError(LaunchEndedError):
    """Two roles of a body of the one launch took different numbers of stages of its ring for an item.

    Attributes:
        item: its position in the plan's sequence.
        more: stages that a role took beyond those that the loads ahead of waits did; negative if it took fewer.
    """

    def __init__(self, message: str, *, item: int, more: int) -> None:
        super().__init__(message, item=item)
        self.more = more
