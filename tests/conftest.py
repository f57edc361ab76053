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
    """Freeze modules and thousands of collected tests, so that garbage collection does not scan them again."""
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
