"""Exclusive use of a decoder: one call at a time, or one stream from its first token to its end.

Every call changes lengths, caches and input tokens of the next step. Two interleaved threads would read each other's
rows and silently generate wrong tokens, so a second user is refused, not queued:

    thread 1               thread 2
    decoder.generate(a)    decoder.generate(b)    BusyError until the first has ended
    next(stream)           decoder.step()         BusyError until the stream is at its end, closed or dropped
    decoder.step()         decoder.step()         BusyError if they overlap

A stream belongs to no thread: any thread may read it, one at a time. No call waits for a lock, so there is no deadlock
when the garbage collector drops a stream during another call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from interlace.core.errors import BusyError


class ExclusiveLock:
    """Lock that admits one user and refuses others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._user = ""

    @contextmanager
    def acquire(self, user: str) -> Iterator[None]:
        """Hold the lock until the context ends.

        Args:
            user: name of the user for messages, such as "Decoder.step".

        Raises:
            BusyError: the lock has another user; nothing has changed.
        """
        if not self._lock.acquire(blocking=False):
            raise self.build_busy_error(user)
        try:
            self._user = user
            yield
        finally:
            self._user = ""
            self._lock.release()

    def check(self, user: str, slots: tuple[int, ...]) -> None:
        """Raise BusyError if the lock has a user, which holds these slots."""
        if self._lock.locked():
            raise self.build_busy_error(f"{user}: other sequences hold slots {[*slots]}")

    def build_busy_error(self, what: str) -> BusyError:
        """Return the error for a second user."""
        return BusyError(
            f"{what}: {self._user or 'another call'} is under way; let it end (a stream is read to its end, or "
            "closed), take turns by a lock, or make a decoder for each thread"
        )
