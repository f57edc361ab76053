"""Root of the tree of errors, which ``errors`` shows."""

from __future__ import annotations


class InterlaceError(Exception):
    """Base of every error raised on purpose by this package; instances can be pickled between processes."""

    def __reduce__(self) -> tuple[object, ...]:
        # The default implementation makes pickle call the class with only the message.
        return _make_bare_error, (type(self), *self.args), vars(self)


def _make_bare_error(kind: type[InterlaceError], *arguments: object) -> InterlaceError:
    """Create an error without attributes; pickle adds them afterwards."""
    return kind.__new__(kind, *arguments)
