"""Selection of the parameters that ``make test`` runs; ``make thorough`` runs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], often: Callable[[Any], bool]) -> list[Any]:
    """Return the values of a parameter; those that are not for every run are marked ``thorough``."""
    return [value if often(value) else pytest.param(value, marks=pytest.mark.thorough) for value in values]
