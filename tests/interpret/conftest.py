"""Kernels under the Triton interpreter: an error, not a skip, where TRITON_INTERPRET=1 is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Triton 3.6's interpreter makes scalars of arrays; NumPy says so thousands of times per test.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Conversion of an array with ndim:DeprecationWarning:triton.runtime.interpreter",
    )


def pytest_pycollect_makemodule() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.Collector.CollectError(
            "these tests run kernels under the Triton interpreter, which is chosen before Python starts: run "
            "`TRITON_INTERPRET=1 pytest tests/interpret`, and the other folders without the variable"
        )


@pytest.fixture(autouse=True, scope="session")
def _builtins_are_found_once() -> Iterator[None]:
    """Which members of ``triton.language`` are replaced is looked for once, and not at each call of a jit function.

    Each call, also of one jit function by another, replaces those members that are builtins, and looks through all
    members to find them. That took half of the time of these tests.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @cache
    def names(package: Any) -> list[str]:
        return [name for name in dir(package) if is_builtin(getattr(package, name, None))]

    def replace(package: Any, builder: Any, scope: Any) -> None:
        for name in names(package):  # none of which is a builtin while another call has it replaced
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", replace)
        yield
