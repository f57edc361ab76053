"""GPU tests. They skip what is not there; with INTERLACE_REQUIRE_GPU=N, of a machine with N GPUs, no test may skip.

What needs more than N GPUs is then deselected, and counted as such in pytest's last line.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest

REQUIRED = int(os.environ.get("INTERLACE_REQUIRE_GPU") or 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    beyond = []
    for item in items:
        if "gpu" not in item.path.parts:
            continue
        item.add_marker(pytest.mark.gpu)
        # Tests are right on a chip whose ceilings are estimates; what is said of these is tested without a GPU.
        item.add_marker(pytest.mark.filterwarnings("default::interlace.executors.gpu.EstimatedDeviceWarning"))
        if count_gpus(item) > REQUIRED > 0:
            beyond.append(item)
    if beyond:
        config.hook.pytest_deselected(items=beyond)
        items[:] = [item for item in items if item not in beyond]


def count_gpus(item: pytest.Item) -> int:
    """How many GPUs a test needs."""
    marker = item.get_closest_marker("gpus")
    return int(marker.args[0]) if marker else 1


def present() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    if not present():
        pytest.skip("needs a CUDA GPU")


@pytest.fixture(autouse=True)
def _gpus(request: pytest.FixtureRequest) -> None:
    if count_gpus(request.node) > present():
        pytest.skip(f"needs {count_gpus(request.node)} CUDA GPUs")


@pytest.fixture(autouse=True)
def _garbage_waits() -> Generator[None, None, None]:
    """A graph that a test left behind would end another's capture if it were collected there."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"INTERLACE_REQUIRE_GPU={REQUIRED}, and this test was skipped: {report.longrepr}"
    return report
