"""``--device``: a chip or a file names a GPU to plan and to predict for, in every command that predicts."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from interlace.cli import names
from interlace.core.devices import DEFAULT_GPU, H100, H200

from .commands import fail, invoke, succeed
from .gpus import OWN

COPIES = ("two-copies", "--m", 256, "--n", 256)


@pytest.fixture
def own_device(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_a_chip_and_a_file_are_devices(own_device: Path) -> None:
    assert [names.DEVICES.parse(name) for name in ("h100", "h200")] == [H100, H200]
    assert names.DEVICES.parse("cuda") is names.Device.CUDA
    spec = names.DEVICES.parse(str(own_device))
    assert isinstance(spec, type(H200))
    assert (spec.name, spec.sms) == ("half an H200", 66)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot read"), ("sms = ", "is no TOML"), (OWN.replace("66", "-1"), "sms is -1")],
)
def test_a_file_that_describes_no_device_is_refused(own_device: Path, text: str | None, message: str) -> None:
    if text is None:
        own_device.unlink()
    else:
        own_device.write_text(text)
    assert message in fail(2, "explain", *COPIES, "--device", own_device)


def test_explain_and_plan_are_for_the_device(own_device: Path, tmp_path: Path) -> None:
    result = invoke("explain", *COPIES, "--device", own_device)
    assert "planned for half an H200" in result.stdout
    assert "nobody measured the rate of memory" in result.stderr
    succeed("plan", *COPIES, "--device", own_device, "--out", tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["workers"] == 8 * 66  # blocks of an SM


def test_traffic_goes_through_the_devices_cache(own_device: Path, tmp_path: Path) -> None:
    def record(*options: object) -> dict[str, Any]:
        succeed("traffic", *COPIES, *options, "--json", tmp_path / "t.json")
        data: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
        return data

    usual, half, h100 = record(), record("--device", own_device), record("--device", "h100")
    assert (usual["workers"], usual["cache"]["name"]) == (DEFAULT_GPU.sms, DEFAULT_GPU.name)
    assert (half["workers"], half["cache"]["name"]) == (66, "half an H200")
    assert h100["cache"]["side_bytes"] == H100.l2.side_bytes
    given = record("--device", own_device, "--cache", "1MiB", "--workers", 4)
    assert (given["workers"], given["cache"]["side_bytes"]) == (4, 1 << 20)
    assert "for a GPU, not for the CPU" in fail(2, "traffic", *COPIES, "--device", "cpu")


def test_run_computes_here_and_predicts_for_the_device(own_device: Path, tmp_path: Path) -> None:
    succeed("run", *COPIES, "--device", own_device, "--executor", "reference", "--json", tmp_path / "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["device"]["kind"], data["predicted"]["device"]["name"]) == ("cpu", "half an H200")


def test_dispatches_are_predicted_for_the_device(own_device: Path) -> None:
    assert "64 items on half an H200, predicted" in succeed("bench", "dispatch", "--items", 64, "--device", own_device)


def test_the_studio_simulates_the_device(own_device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    served: list[Any] = []
    fake = types.SimpleNamespace(serve=lambda port, view, **more: served.append(view))
    monkeypatch.setitem(sys.modules, "interlace.studio.server", fake)
    monkeypatch.setattr("interlace.studio.server", fake, raising=False)
    plan = tmp_path / "plan.json"
    succeed("plan", *COPIES, "--device", own_device, "--out", plan)
    succeed("studio", plan, "--device", own_device)
    assert "half an H200" in served[0].says


def test_commands_that_only_run_refuse_a_device_to_predict_for(own_device: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    message = "half an H200 is a GPU to predict for"
    assert message in fail(2, "trace", *COPIES, "--device", own_device, "--out", out)
    succeed("plan", *COPIES, "--device", "cpu", "--out", tmp_path / "plan.json")
    assert message in fail(2, "run", tmp_path / "plan.json", "--device", own_device)
    assert not out.exists()
