"""Where a launch ended itself, nothing else of the process runs: who tries several says so, and does not go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

from interlace.cli import bench  # noqa: E402
from interlace.core.devices import CPU  # noqa: E402
from interlace.core.errors import HangError, InterlaceError, LaunchEndedError, StageCountError  # noqa: E402
from interlace.nn.decoder import launch  # noqa: E402
from interlace.tune import search  # noqa: E402

ENDED = LaunchEndedError("stuck", item=0), StageCountError("off by one", item=0, extra_stages=1)
HANG = HangError("never posted", item=0, semaphore=0, expected=1, seen=0, producer=None)


def raising(error: Exception) -> Any:
    def function(*arguments: object, **options: object) -> None:
        raise error

    return function


@contextmanager
def nothing(*arguments: object) -> Iterator[None]:
    yield


def step_of(monkeypatch: pytest.MonkeyPatch, error: InterlaceError) -> object:
    for name in ("device_fallback_reason", "find_spec"):
        monkeypatch.setattr(launch, name, lambda *given: None)
    graph = SimpleNamespace(inputs=(), outputs=())
    monkeypatch.setattr(launch, "StepKey", lambda *given: SimpleNamespace(build_graph=lambda: graph))
    monkeypatch.setattr(launch, "_hold_half_full", nothing)
    monkeypatch.setattr(launch, "STEP_EXECUTORS", [SimpleNamespace(name="one", check=lambda *given: None)])
    monkeypatch.setattr(launch, "build_executor", raising(error))
    tensors = {"embed": torch.zeros(1, dtype=torch.bfloat16)}
    return launch.build_step_launch(None, 1, 1, tensors, torch.zeros(1))  # type: ignore[arg-type]


def checked_by_tuning(error: InterlaceError) -> object:
    case = SimpleNamespace(workload=None, make_executor=raising(error), device=CPU)
    return search._check_schedule(SimpleNamespace(), case, None, False)  # type: ignore[arg-type]


def row_of(monkeypatch: pytest.MonkeyPatch, error: InterlaceError) -> object:
    monkeypatch.setattr(bench, "_get_compilers", lambda processes: None)
    monkeypatch.setattr(bench, "measure", raising(error))
    row, _ = bench._Measurer(CPU, (), False, None, 1)((None, SimpleNamespace()))  # type: ignore[arg-type]
    return row


@pytest.mark.parametrize("error", ENDED)
def test_who_tries_several_does_not_go_on(error: InterlaceError, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error)):
        step_of(monkeypatch, error)
    with pytest.raises(type(error)):
        checked_by_tuning(error)
    with pytest.raises(type(error)):
        row_of(monkeypatch, error)


def test_behind_a_wait_that_failed_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_of(monkeypatch, HANG) == "one: never posted"
    assert checked_by_tuning(HANG) is None
    assert row_of(monkeypatch, HANG) is HANG
