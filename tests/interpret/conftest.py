"""Kernels under the Triton interpreter: an error, not a skip, where TRITON_INTERPRET=1 is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .haste import nothing_twice


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
def _interpreter_does_nothing_twice() -> Iterator[None]:
    with nothing_twice():
        yield
