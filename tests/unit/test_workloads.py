"""Workloads: fields, presets and inputs; and every command on one that the package does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlace import workloads
from interlace.bench import profile as profiling
from interlace.bench.timing import Timing
from interlace.cli import profile as cli_profile
from interlace.cli import tune as cli_tune
from interlace.cli.machine import HostMachine
from interlace.core.devices import CPU, H200
from interlace.core.dtypes import fp16, fp32
from interlace.core.errors import ArgumentError, ShapeError
from interlace.deploy.store import load_cached
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.kernels.matmul import Activation
from interlace.kernels.matmul.tile import TileShape
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings
from interlace.tune import search as searching
from interlace.workloads import WORKLOADS, FeedForward, OneMatmul, TwoCopies, Workload
from interlace.workloads.base import list_options

from . import profiler
from .commands import fail, no_option, succeed
from .gpus import FakeProblem
from .toy import Ladder

KINDS = [*WORKLOADS, Ladder]
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@each
def test_the_graph_in_tiles_computes_what_is_dense(kind: type[Workload]) -> None:
    problem = kind.from_fields({kind.size: 33}, gpu=False)
    inputs = problem.make_inputs(0)
    right = problem.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})
    for tile in (None, TileShape(32, 32, 16)):
        graph = problem.build_graph(CPU, tile)
        assert (set(inputs), set(right)) == (set(graph.inputs), set(graph.outputs))
        found = ReferenceExecutor(build(graph, Schedule(3))).run(inputs)
        for name, value in right.items():
            assert np.linalg.norm(found[name] - value) <= 1e-12 * np.linalg.norm(value)


@each
def test_the_dense_meaning_is_the_same_in_torch_and_is_traced_whole(kind: type[Workload]) -> None:
    torch = pytest.importorskip("torch")
    problem = kind.from_fields({}, gpu=False)
    inputs = {name: value.astype(np.float64) for name, value in problem.make_inputs(0).items()}
    right = problem.run_dense(np, inputs)
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    torch.compiler.reset()  # one line is compiled for every workload, more often than torch does by itself
    compiled = torch.compile(lambda t: problem.run_dense(torch, t), backend="eager", fullgraph=True)
    for run in (lambda t: problem.run_dense(torch, t), compiled, *problem.list_alternatives(torch).values()):
        for name, value in run(tensors).items():
            assert np.linalg.norm(value.numpy() - right[name]) <= 1e-12 * np.linalg.norm(right[name])


@each
def test_every_field_is_an_option_and_every_preset_a_problem(kind: type[Workload]) -> None:
    fields = list_options(kind)
    assert kind.size in fields
    assert {kind.cpu_preset, kind.gpu_preset} | set(kind.record) <= set(kind.presets)
    for gpu in (False, True):
        for name in kind.presets:
            problem = kind.from_fields({}, gpu, name)
            graph = problem.build_graph(H200)
            assert set(problem.weights) & set(graph.inputs)
            assert problem.to_data().keys() == {"name", *fields}
            json.dumps(problem.to_data())
            assert (
                kind.from_fields({n: getattr(problem, n) for n in fields if getattr(problem, n) is not None}, gpu)
                == problem
            )


def test_fields_that_are_given_stand_before_the_preset_and_the_preset_before_the_default() -> None:
    assert FeedForward.from_fields({}, gpu=False) == FeedForward(384, 1536, 16)
    assert FeedForward.from_fields({}, gpu=True).shape == workloads.MODELS["llama3-8b"]
    found = FeedForward.from_fields({"ffn": 256, "dtype": fp16}, gpu=True, preset="minilm")
    assert found == FeedForward(384, 256, 16, dtype=fp16)
    gated = FeedForward.from_fields({"gated": True}, gpu=False)
    assert (gated.gated, gated.activation) == (True, Activation.SILU)
    plain = FeedForward.from_fields({"gated": False}, gpu=True)
    assert (plain.gated, plain.activation) == (False, Activation.SILU)


@pytest.mark.parametrize(
    ("kind", "given", "preset", "error", "message"),
    [
        (
            FeedForward,
            {},
            "gpt",
            ArgumentError,
            "workload 'ffn' has no preset 'gpt'; use one of llama3-8b, llama3-70b-tp8",
        ),
        (OneMatmul, {"ffn": 3}, None, ArgumentError, "workload 'one-matmul' has no ffn; it has m, n, k, dtype"),
        (
            FeedForward,
            {"gated": True, "activation": Activation.RELU},
            None,
            ShapeError,
            "a gated FFN uses silu, not relu",
        ),
        (
            FeedForward,
            {"down": "w"},
            None,
            ArgumentError,
            "down names a weight of a checkpoint; pass the checkpoint too",
        ),
    ],
)
def test_what_is_no_problem_says_so(
    kind: type[Workload], given: dict[str, Any], preset: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind.from_fields(given, False, preset)


def test_a_field_without_an_option_or_a_value_is_named() -> None:
    @dataclass(frozen=True)
    class Bare(TwoCopies):
        depth: int = 3

    with pytest.raises(ArgumentError, match="field 'depth' has no Option"):
        list_options(Bare)
    part = type("Part", (TwoCopies,), {"presets": {"small": {"m": 3}}})
    with pytest.raises(ArgumentError, match="preset 'small' of workload 'two-copies' has no n; give it"):
        part.from_fields({}, False, "small")


def test_a_cpu_of_any_name_has_the_tiles_of_a_cpu() -> None:
    problem, here = FeedForward(64, 128, 256), replace(CPU, name="CPU (x86_64)")
    assert [problem.build_graph(device).op("up").grid for device in (CPU, here, H200)] == [(16, 2), (16, 2), (2, 1)]


def test_flops_are_those_of_the_problem_and_not_of_whole_tiles() -> None:
    assert FeedForward(64, 128, 3, gated=True, activation=Activation.SILU).flops == 2 * 3 * 64 * 128 * 3
    assert FeedForward(64, 128, 3).flops == 2 * 3 * 64 * 128 * 2
    assert OneMatmul(3, 5, 7).flops == 2 * 3 * 5 * 7


def test_titles_name_what_is_set() -> None:
    ladder = Ladder(64, dtype=fp32)
    assert ladder.title == "ladder, width 64, rows 32, dtype fp32"
    assert replace(ladder, residual=True).describe_fields("rows") == ["width 64", "residual", "dtype fp32"]


# ---------------------------------------------------------------- every command on a workload of one's own


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One line registers it."""
    monkeypatch.setattr(workloads, "WORKLOADS", (*WORKLOADS, Ladder))
    return tmp_path


def test_run_takes_it(ladder: Path) -> None:
    shown = succeed("run", "ladder", "--device", "cpu", "--residual", "--rows", 40, "--json", ladder / "r.json")
    assert "ladder, width 64, rows 40, residual, dtype bf16" in " ".join(shown.split())
    record = json.loads((ladder / "r.json").read_text())
    workload = {"name": "ladder", "width": 64, "rows": 40, "residual": True, "dtype": "bf16", "seed": 0}
    assert record["workload"] == workload
    assert [e["relative_error"] < 1e-12 for e in record["executors"]] == [True, True]
    assert no_option(fail(2, "run", "ladder", "--hidden", 3), "--hidden")


def test_plan_and_verify_and_trace_take_it(ladder: Path) -> None:
    path = ladder / "plan.json"
    succeed("plan", "ladder", "--device", "cuda", "--preset", "low", "--tile", "16x16", "--out", path)
    assert [op["grid"] for op in json.loads(path.read_text())["graph"]["ops"]] == [[2, 4]] * 3
    assert "safe" in succeed("verify", path)
    succeed("trace", "ladder", "--device", "cpu", "--out", ladder / "t.json")
    slices = [e for e in json.loads((ladder / "t.json").read_text())["traceEvents"] if e.get("cat") == "work"]
    assert {e["name"] for e in slices} == {"step0", "step1", "step2"}


def test_traffic_takes_it(ladder: Path) -> None:
    succeed("traffic", "ladder", "--preset", "low", "--tile", "16x16x16", "--sweep", "--json", ladder / "t.json")
    told = json.loads((ladder / "t.json").read_text())
    assert told["tiles"] == "step0 16x16x16, step1 16x16x16, step2 16x16x16"
    assert told["loads"] == 3 * 8 * 2 * 4
    fewest = 2 * (3 * 64 * 64 + 32 * 64)
    assert all(order["dram_read_bytes"] >= order["compulsory_bytes"] == fewest for order in told["orders"])
    assert "serpentine" in {order["order"] for order in told["orders"]}


def test_explain_takes_it(ladder: Path) -> None:
    succeed("explain", "ladder", "--device", "cuda", "--json", ladder / "why.json")
    told = json.loads((ladder / "why.json").read_text())
    assert [op["op"] for op in told["ops"]] == ["step0", "step1", "step2"]
    assert told["predicted_us"] <= told["plain_us"]


def test_tune_takes_it(ladder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")

    def times(functions: Mapping[str, Any], rounds: int, calls: int) -> dict[str, Timing]:
        return {name: Timing(50.0 + int(name), 0, 0) for name in functions}

    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(ladder / "cache"))
    monkeypatch.setattr(cli_tune, "find_machine", lambda device: HostMachine(True, H200))
    monkeypatch.setattr(searching, "current_device", lambda: H200)
    monkeypatch.setattr(searching, "make_executor", lambda graph, device, executor, schedule: schedule)
    monkeypatch.setattr(searching, "BenchProblem", FakeProblem)
    monkeypatch.setattr(searching, "time_medians", times)
    monkeypatch.setattr(searching, "compile_launches", lambda makers: iter(()))
    monkeypatch.setattr(searching, "measure_speedup", lambda workload, device, executor: 1.5)
    path = ladder / "t.json"
    shown = succeed("tune", "ladder", "--width", 256, "--rows", 16, "--rows", 64, "--top", 2, "--json", path)
    assert "ladder, width 256, rows 64, dtype bf16, on NVIDIA H200, one_launch executor" in " ".join(shown.split())
    rows = json.loads(path.read_text())["rows"]
    assert [(row["size"], row["workload"]["width"]) for row in rows] == [(16, 256), (64, 256)]
    kept = load_cached(Ladder(256, 64).build_graph(H200), H200, MegakernelExecutor)
    assert kept is not None
    best = rows[1]["best"]["setting"]
    assert (encode_tilings(kept.schedule.op_tilings), kept.us, kept.library_us) == (best, 50.0, 75.0)


def test_profile_takes_it(ladder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(ladder / "cache"))
    monkeypatch.setattr(cli_profile, "find_machine", lambda device: HostMachine(True, H200))
    monkeypatch.setattr(profiling, "compile_launches", lambda makers: iter(()))
    profiler.install(ladder, monkeypatch, profiler.csv([profiler.launch()] * 4))
    path = ladder / "p.json"
    succeed("profile", "ladder", "--preset", "low", "--sweep", "width", "--json", path)
    told = json.loads(path.read_text())
    assert (told["sweep"], [row["workload"]["width"] for row in told["rows"]]) == ("width", [32, 64, 128, 256])
    assert {row["workload"]["rows"] for row in told["rows"]} == {32}
    assert [run.graph.name for run in profiler.load_counted_runs(ladder)] == ["ladder"] * 4
    assert "unknown sweep 'residual'; use one of rows, width" in fail(2, "profile", "ladder", "--sweep", "residual")
