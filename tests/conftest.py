"""Options of every test: ``--update-golden`` rewrites the golden files instead of comparing with them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_collection_finish() -> None:
    """Freeze modules and thousands of collected tests, so that garbage collection does not scan them again.

    It also runs 15 times less often than by default: what tests leave is mostly freed without it.
    """
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True, scope="module")
def _freeze_what_a_module_leaves() -> Iterator[None]:
    """Freeze caches and what was imported late, too, so that later collections take the time of a module's objects."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary cache in place of the user's for all tests; xdist workers share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERLACE_CACHE_DIR", str(folder / "cache"))
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder, not created yet, in which the test caches what it compiles and proves."""
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    return tmp_path / "compiled"
