"""The command line on the GPU: every executor that can runs, and is compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli import app
from interlace.cli.machine import find_machine
from interlace.cli.names import Device
from interlace.executors import EXECUTORS, DeviceExecutor
from interlace.workloads import FeedForward, TwoMatmuls, Workload


def run(tmp_path: Path, *arguments: object) -> list[str]:
    """The executors of a run, none of which was wrong."""
    path = tmp_path / "r.json"
    result = CliRunner().invoke(app, ["run", *map(str, arguments), "--json", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())["executors"]
    assert all(executor["plan"]["verified"] for executor in found)
    return [executor["name"] for executor in found]


@pytest.mark.parametrize("m", [16, 200, 1024])
@pytest.mark.parametrize("kind", [FeedForward, TwoMatmuls])
def test_every_executor_that_can_runs_and_is_compared(tmp_path: Path, kind: type[Workload], m: int) -> None:
    widths = ["--m", m, "--hidden", 1024, "--ffn", 2048]
    spec = find_machine(Device.CUDA).spec
    graph = kind.from_fields({"m": m, "hidden": 1024, "ffn": 2048}, gpu=True).build_graph(spec)
    able = [e.name for e in EXECUTORS if issubclass(e, DeviceExecutor) and e.fallback_reason(graph, spec) is None]
    assert ("one_launch" in able) is (spec.capability[0] == 9)
    assert [name for name in run(tmp_path, kind.name, *widths) if name != "reference"] == able


def test_a_plan_file_runs_on_those_that_take_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tile = ["--tile", "64x64x64", "--m", "64", "--hidden", "512", "--ffn", "512"]
    made = CliRunner().invoke(app, ["plan", "two-matmuls", "--device", "cuda", *tile, "--out", str(path)])
    assert made.exit_code == 0, made.output
    found = run(tmp_path, path)
    assert {"serial", "cuda_graph", "pdl", "streams", "semaphore_streams", "persistent-ticket"} <= set(found)
    assert "persistent-static" not in found
