"""Exclusive use of a decoder: one call at a time, or one stream of texts from its first token to its end.

Every call changes lengths, caches and the tokens that a step takes. Two threads that interleave would read each other's
rows and get a wrong text without an error, so a second user is refused, not queued:

    thread 1               thread 2
    decoder.generate(a)    decoder.generate(b)    BusyError until the first has ended
    next(stream)           decoder.step()         BusyError until the stream is at its end, closed or dropped
    decoder.step()         decoder.step()         BusyError if they overlap

A stream belongs to no thread: any may read it, one at a time. Nothing waits for a lock, so a stream that the garbage
collector drops in the middle of another call cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from interlace.core.errors import BusyError


class Turns:
    """A lock that admits one user, and refuses others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._user = ""

    @contextmanager
    def take(self, user: str) -> Iterator[None]:
        """Be the user until the context ends.

        Args:
            user: for messages: "Decoder.step".

        Raises:
            BusyError: there is another; nothing has changed.
        """
        if not self._lock.acquire(blocking=False):
            raise self.busy(user)
        try:
            self._user = user
            yield
        finally:
            self._user = ""
            self._lock.release()

    def check(self, user: str, slots: tuple[int, ...]) -> None:
        """Raise BusyError if there is a user, who holds these slots."""
        if self._lock.locked():
            raise self.busy(f"{user}: other sequences hold slots {[*slots]}")

    def busy(self, what: str) -> BusyError:
        """Return the error of a second user."""
        return BusyError(
            f"{what}: {self._user or 'another call'} is under way; let it end (a stream is read to its end, or "
            "closed), take turns by a lock, or make a decoder for each thread"
        )
