"""Notices for users about settings that change tokens and that a model omits or a decoder does not apply."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


class MissingSettingWarning(UserWarning):
    """A model omits a setting that changes tokens, or has one that is not applied; the message names it."""


def warn_missing(notices: Iterable[str], stacklevel: int) -> None:
    """Warn of each line, attributed to the code ``stacklevel`` frames above the caller of this function."""
    for notice in notices:
        warnings.warn(notice, MissingSettingWarning, stacklevel=stacklevel + 2)
