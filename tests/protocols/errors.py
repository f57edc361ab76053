"""Faults that ``check`` finds in a model, in addition to those of a launch (``interlace.core.errors``)."""

from __future__ import annotations

from interlace.core.errors import ProtocolError


class StaleReadError(ProtocolError):
    """A read may find an older or newer value than it should."""


class OverwriteError(ProtocolError):
    """A store is not ordered after a read of the word, or after another store."""


class LostItemError(ProtocolError):
    """All workers have ended, and an item is not done."""


class DoubledItemError(ProtocolError):
    """An item is done a second time."""


class StuckError(ProtocolError):
    """Workers wait for an operation that never happens, or for a value that may be overwritten before they see it."""
