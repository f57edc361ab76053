"""While CUDA C++ moves to ``csrc``: the texts that launches are composed of stay the same, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import interlace as il

from .conftest import HASHES, short_hash


def texts_of(name: str, value: Any) -> dict[str, str]:
    """Texts of more than a line by the name of what holds them."""
    if isinstance(value, Mapping):
        return {key: text for of, each in value.items() for key, text in texts_of(f"{name}[{of}]", each).items()}
    if type(value).__name__ in ("TextBody", "WalkBody"):
        return texts_of(f"{name}.text", value.text)
    return {name: value} if isinstance(value, str) and "\n" in value else {}


def test_texts_of_launches_are_unchanged() -> None:
    found: dict[str, str] = {}
    for room in ("kernels", "launch", "loops", "executors", "bench"):
        for module in walk_packages([f"{il.__path__[0]}/{room}"], f"interlace.{room}."):
            for name, value in vars(import_module(module.name)).items():
                if not name.startswith("__"):
                    found |= texts_of(f"{module.name}.{name}", value)
    changed = {name: text for name, text in HASHES["constants"].items() if short_hash(found.get(name, "")) != text}
    assert not changed, changed
