"""Lines for a user about settings that change tokens and that a model leaves out, or a decoder does not follow."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


class MissingSettingWarning(UserWarning):
    """A model leaves out a setting that changes tokens, or has one that is not followed; the text says which."""


def warn_missing(notices: Iterable[str], stacklevel: int) -> None:
    """Warn of each line, at the code ``stacklevel`` frames above the caller of this function."""
    for notice in notices:
        warnings.warn(notice, MissingSettingWarning, stacklevel=stacklevel + 2)
