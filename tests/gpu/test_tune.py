"""The measured search and the counted profile, on the GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli import app
from interlace.core.dtypes import DType, bf16, fp32
from interlace.deploy import current_device, select_executor, select_schedule
from interlace.kernels.matmul import Activation
from interlace.tune import tune
from interlace.workloads import FeedForward, TwoMatmuls, Workload

RELU = FeedForward(2048, 4096, activation=Activation.RELU)
CHAIN = TwoMatmuls(2048, 4096)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("dtype", [bf16, fp32])
@pytest.mark.parametrize("m", [16, 512])
@pytest.mark.parametrize("kind", [RELU, CHAIN], ids=lambda kind: kind.name)
def test_the_fastest_of_candidates_and_default_is_what_runs_next(kind: Workload, m: int, dtype: DType) -> None:
    workload = replace(kind, m=m, dtype=dtype)
    (found,) = tune([workload], top=3)
    us = {c.schedule: c.us for c in found.candidates if c.us is not None}
    assert len(us) == found.tried_schedules >= 2
    assert found.default_schedule in us
    assert us[found.best_schedule] == min(us.values())
    device = current_device()
    graph = workload.build_graph(device)
    executor = select_executor(graph, device)
    assert found.executor == executor.name
    assert select_schedule(graph, device, executor) == found.best_schedule


def test_counters_of_a_few_tokens_are_those_of_the_weights(tmp_path: Path) -> None:
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")
    path = tmp_path / "profile.json"
    widths = ["--hidden", "2048", "--ffn", "4096", "--no-gated", "--activation", "relu"]
    result = CliRunner().invoke(app, ["profile", "ffn", *widths, "--m", "16", "--m", "256", "--json", str(path)])
    if "may not read hardware counters" in result.output:
        pytest.skip(result.output)
    assert result.exit_code == 0, result.output
    weights = 2 * 2048 * 4096 * 2
    few, many = json.loads(path.read_text())["rows"]
    assert (few["size"], many["size"]) == (16, 256)
    assert 0.97 * weights <= few["counted"]["dram_read_bytes"] <= 1.1 * weights
    assert many["counted"]["l2_hit_rate"] > few["counted"]["l2_hit_rate"]
