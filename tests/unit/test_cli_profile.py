"""``interlace profile`` with a stand-in for the profiler: what it runs, what it concludes, and how it fails."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import Result

from interlace.bench import profile as profiling
from interlace.bench.profile import Figures, LaunchBottleneck, ProfileRun, run_child
from interlace.cli import profile as cli_profile
from interlace.cli.machine import HostMachine
from interlace.core.devices import H200, DeviceSpec
from interlace.core.dtypes import bf16, fp16
from interlace.deploy.store import CacheEntry, store_cached
from interlace.graph.graph import Graph
from interlace.kernels.matmul import Activation
from interlace.megakernel.options import RunOptions
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings
from interlace.workloads import FeedForward, FFNShape

from ..ring import Ring
from .commands import run_command
from .gpus import A100, ffn_of, on_h200
from .profiler import csv, install, launch
from .profiler import load_counted_runs as profiled

RELU = FFNShape(4096, 14336, Activation.RELU, False)
SHAPE = ["--no-gated", "--activation", "relu"]


def command(*arguments: str) -> Result:
    return run_command("profile", "ffn", *arguments)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cli_profile, "find_machine", lambda device: HostMachine(True, H200))
    monkeypatch.setattr(profiling, "compile_launches", lambda makers: iter(range(len(makers) - 1, -1, -1)))


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("memory", "compute", "verdict"),
    [
        (0.83, 0.08, LaunchBottleneck.MEMORY),
        (0.33, 0.94, LaunchBottleneck.COMPUTE),
        (0.59, 0.59, LaunchBottleneck.NEITHER),
        (0.60, 0.10, LaunchBottleneck.MEMORY),
        (0.70, 0.75, LaunchBottleneck.COMPUTE),
    ],
)
def test_what_binds_is_what_is_used_most_if_it_is_used_much(
    memory: float, compute: float, verdict: LaunchBottleneck
) -> None:
    assert Figures(1.0, 1.0, 0.5, 1.0, memory, compute).bottleneck is verdict


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("h200")
def test_each_number_of_tokens_is_counted_once_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [launch(), launch("462,000,000", "31,000,000", "61.00", "325,000"), launch(ns="1,000,000")]
    seen = install(tmp_path, monkeypatch, csv(rows))
    path = tmp_path / "profile.json"
    result = command(*SHAPE, "--sweep", "m", "--m", "16", "--m", "1024", "--m", "17", "--m", "16", "--json", str(path))
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert (record["gpu"], record["sweep"]) == ("NVIDIA H200", "m")
    assert {row["workload"]["ffn"] for row in record["rows"]} == {14336}
    counted = [row["counted"] for row in record["rows"]]
    assert [row["size"] for row in record["rows"]] == [16, 1024, 17]
    assert [row["verdict"] for row in counted] == ["memory bound", "compute bound", "neither"]
    # 236 MB read and 2 written in 63 us; 4 * 16 * 4096 * 14336 FLOPs.
    few = counted[0]
    assert (few["us"], few["l2_hit_rate"], few["dram_read_bytes"]) == (63.0, 0.1025, 236e6)
    assert few["bytes_per_s"] == pytest.approx(238e6 / 63e-6)
    assert few["memory_share"] == pytest.approx(238e6 / 63e-6 / 4.53e12)
    assert few["flops_per_s"] == pytest.approx(4 * 16 * 4096 * 14336 / 63e-6)
    assert few["compute_share"] == pytest.approx(4 * 16 * 4096 * 14336 / 63e-6 / 790e12)
    shown = " ".join(result.stdout.split())
    assert "ffn, hidden 4096, ffn 14336, activation relu, dtype bf16, on NVIDIA H200, one_launch executor" in shown
    for text in ("counted", "predicted", "236", "10%", "memory bound", "compute bound", "neither"):
        assert text in shown, text
    assert seen.read_text().split("\n")[-3:-1] == ["-m", "interlace.bench.profile"]
    assert [run.graph.tensor("x").shape[0] for run in profiled(tmp_path)] == [16, 1024, 17]


@pytest.mark.usefixtures("h200")
def test_the_prediction_beside_it_is_that_of_the_same_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, csv([launch()]))
    path = tmp_path / "profile.json"
    assert command(*SHAPE, "--m", "16", "--json", str(path)).exit_code == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["setting"] == encode_tilings(on_h200(16, RELU).default_schedule.op_tilings)
    predicted = row["predicted"]
    weights = 2 * 4096 * 14336 * 2
    assert weights <= predicted["dram_read_bytes"] <= 1.03 * weights  # 16 tokens and partial sums besides
    assert 50 <= predicted["us"] <= 70
    assert predicted["verdict"] == "memory bound"


@pytest.mark.usefixtures("h200")
def test_a_tuned_setting_is_the_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = on_h200(16, RELU)
    chosen = Ring(16, 128, 64, True, 1, (1, 4), 4).schedule(launched.graph)
    store_cached(launched.graph, launched.device, launched.executor, CacheEntry(chosen, 54.0))
    install(tmp_path, monkeypatch, csv([launch(), launch()]))
    assert command(*SHAPE, "--m", "16", "--m", "64").exit_code == 0
    runs = profiled(tmp_path)
    assert [run.graph.tensor("x").shape[0] for run in runs] == [16, 64]
    assert [run.schedule for run in runs] == [chosen, on_h200(64, RELU).default_schedule]


@pytest.mark.usefixtures("h200")
def test_the_default_sweep_is_over_the_sizes_of_the_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, csv([launch()] * len(FeedForward.sizes)))
    result = command("--hidden", "1024", "--ffn", "2048")
    assert result.exit_code == 0, result.output
    graphs = [run.graph for run in profiled(tmp_path)]
    assert [graph.tensor("hidden").shape for graph in graphs] == [(m, 2048) for m in FeedForward.sizes]
    assert {graph.tensor("x").dtype for graph in graphs} == {bf16}


@pytest.mark.usefixtures("h200")
def test_the_width_between_the_matmuls_can_vary_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, csv([launch()] * 4))
    path = tmp_path / "p.json"
    result = command("--hidden", "1024", "--ffn", "2048", "--sweep", "ffn", "--json", str(path))
    assert result.exit_code == 0, result.output
    shapes = [run.graph.tensor("hidden").shape for run in profiled(tmp_path)]
    assert shapes == [(16, n) for n in (1024, 2048, 4096, 8192)]
    record = json.loads(path.read_text())
    assert record["sweep"] == "ffn"
    assert [row["workload"]["ffn"] for row in record["rows"]] == [1024, 2048, 4096, 8192]
    # The weights of a gated FFN of the width that is said.
    for row in record["rows"]:
        assert row["predicted"]["dram_read_bytes"] == pytest.approx(3 * 1024 * row["workload"]["ffn"] * 2, rel=0.1)


@pytest.mark.usefixtures("h200")
def test_launches_of_two_executors_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def count(command: object, kernel: str, metrics: dict[str, str]) -> list[dict[str, float]]:
        asked.append(kernel)
        widths = {"one_launch": 3, "persistent_ticket_kernel": 1}
        return [dict.fromkeys(metrics, float(1000 * len(asked) + i)) for i in range(widths[kernel])]

    install(tmp_path, monkeypatch)
    monkeypatch.setattr(profiling, "count_launches", count)
    path = tmp_path / "p.json"
    result = command("--hidden", "1024", "--ffn", "1032", "--sweep", "ffn", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert asked == ["persistent_ticket_kernel", "one_launch"]
    rows = json.loads(path.read_text())["rows"]
    assert [row["executor"] for row in rows] == ["persistent-ticket", "one_launch", "one_launch", "one_launch"]
    assert [row["counted"]["dram_read_bytes"] for row in rows] == [1000, 2000, 2001, 2002]


def test_elsewhere_the_persistent_executor_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_profile, "find_machine", lambda device: HostMachine(True, A100))
    monkeypatch.setattr(profiling, "compile_launches", lambda makers: iter(()))
    seen = install(tmp_path, monkeypatch, csv([launch()]))
    result = command("--hidden", "1024", "--ffn", "2048", "--m", "16")
    assert result.exit_code == 0, result.output
    assert "persistent-ticket executor" in " ".join(result.stdout.split())
    assert "regex:^persistent_ticket_kernel$" in seen.read_text()


# ---------------------------------------------------------------- failures


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (None, "error: ncu is not on the PATH; install NVIDIA Nsight Compute"),
        ({"stdout": "==ERROR== ERR_NVGPUCTRPERM - no permission\n", "code": 1}, "error: ncu may not read hardware"),
        ({"stdout": csv([launch()])}, "error: ncu counted 1 launches of 2"),
        ({"stdout": "nothing"}, "error: ncu counted nothing"),
        ({"stderr": "error: no such device\n", "code": 1}, "error: ncu ended with exit code 1: error: no such device"),
    ],
)
def test_a_profiler_that_does_not_count_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: dict[str, Any] | None, message: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        install(tmp_path, monkeypatch, **program)
    result = command(*SHAPE, "--m", "16", "--m", "64")
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--m", "16"], 1, "torch sees no CUDA GPU"),
        (["--sweep", "n"], 2, "unknown sweep 'n'; use one of m, hidden, ffn"),
        (["--m", "0"], 2, "--m"),
        (["--activation", "relu"], 2, "a gated FFN uses silu, not relu"),
    ],
)
def test_profile_fails_clearly(arguments: list[str], code: int, message: str) -> None:
    if code == 1 and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    result = command(*arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())


# ---------------------------------------------------------------- the child


class Executor:
    """Notes what it runs on."""

    ran: ClassVar[list[tuple[Any, int, int]]] = []

    def __init__(
        self, graph: Graph, device: DeviceSpec, executor: object, schedule: Schedule, options: RunOptions
    ) -> None:
        assert not options.dependent_launch
        self.schedule, self.plan, self.ffn = schedule, build(graph, schedule), graph.tensor("hidden").shape[1]

    def allocate_tensor(self, name: str) -> Any:
        class Tensor:
            shape = self.plan.graph.tensor(name).shape
            scale = np.nan

            def normal_(self, mean: float, scale: float) -> None:
                self.scale = scale

        return Tensor()

    def run(self, tensors: dict[str, Any]) -> None:
        assert tensors["w_down"].scale == self.ffn**-0.5
        assert np.isnan(tensors["out"].scale)
        self.ran.append((self.schedule, tensors["x"].shape[0], self.ffn))

    def synchronize(self) -> None:
        pass


def test_the_child_runs_each_setting_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        class cuda:
            synchronize = staticmethod(lambda device: None)

    shape = FFNShape(256, 512, Activation.RELU, False)
    workloads = ffn_of(64, shape, fp16), ffn_of(16, replace(shape, ffn=1024), fp16)
    runs = [ProfileRun.from_workload(workload, H200) for workload in workloads]
    monkeypatch.setattr(Executor, "ran", [])
    monkeypatch.setattr(profiling, "open_device", lambda name: (Torch, name))
    monkeypatch.setattr(profiling, "make_executor", Executor)
    run_child(pickle.loads(pickle.dumps(runs)))
    assert Executor.ran == [(runs[0].schedule, 64, 512), (runs[1].schedule, 16, 1024)]
