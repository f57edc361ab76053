"""GPU tests: skipped without a CUDA GPU, unless INTERLACE_REQUIRE_GPU=1 turns that into a failure."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    try:
        import torch

        present = torch.cuda.is_available()
    except ImportError:
        present = False
    if not present:
        if os.environ.get("INTERLACE_REQUIRE_GPU") == "1":
            pytest.fail("INTERLACE_REQUIRE_GPU=1, but torch sees no CUDA GPU")
        pytest.skip("needs a CUDA GPU")
