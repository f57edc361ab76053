"""The root of the tree of errors, which ``errors`` shows."""

from __future__ import annotations


class InterlaceError(Exception):
    """Base of every error raised on purpose by this package; they go from process to process by pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        # By default pickle calls the class with the message alone.
        return _bare, (type(self), *self.args), vars(self)


def _bare(kind: type[InterlaceError], *arguments: object) -> InterlaceError:
    """An error without the attributes that pickle adds next."""
    return kind.__new__(kind, *arguments)
