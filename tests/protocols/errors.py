"""Faults that ``check`` finds in a model, besides those of a launch (``interlace.core.errors``)."""

from __future__ import annotations

from interlace.core.errors import ProtocolError


class StaleReadError(ProtocolError):
    """A read may find an older value than it should, or a newer one."""


class OverwriteError(ProtocolError):
    """A store that nothing orders behind a read of the word, or behind another store."""


class LostItemError(ProtocolError):
    """All workers have ended, and an item is not done."""


class DoubledItemError(ProtocolError):
    """An item is done a second time."""


class StuckError(ProtocolError):
    """Workers wait for what nobody does any more, or for a value that may pass unseen."""
