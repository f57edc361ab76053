"""The command line on a CPU: what it computes, what it writes, and how it fails."""

import json
import math
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest
import safetensors.numpy

import interlace
from interlace.bench.timing import Timing
from interlace.cli import gpu_forecast, main, table
from interlace.cli import machine as machine_module
from interlace.cli import run as run_module
from interlace.cli.console import BadInput
from interlace.cli.machine import HostMachine, find_machine, find_target
from interlace.cli.names import DISPATCHES, EXECUTORS, Device
from interlace.cli.options import ScheduleOptions
from interlace.cli.predicted import draw_picture
from interlace.cli.problem import Plans, RunProblem, build_problem
from interlace.cli.runners import ReferenceRunner, compute_relative_error
from interlace.cli.table import ResultRow
from interlace.cli.trace import find_arrows
from interlace.cli.workloads import Selection
from interlace.core import dtypes
from interlace.core.devices import H200
from interlace.core.errors import NoDeviceError, TooManyWorkersError
from interlace.executors import EXECUTORS as EXECUTOR_CLASSES
from interlace.executors import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.executors.serial import CudaGraphExecutor, SerialExecutor
from interlace.kernels.base import format_tiling
from interlace.kernels.matmul.tile import TileShape
from interlace.planner.build import build
from interlace.planner.retile import retile
from interlace.policies.schedule import Schedule
from interlace.trace.events import Trace
from interlace.workloads import WORKLOADS, FeedForward, Workload

from .commands import SMALL, fail, invoke, no_option, succeed


def cpu_problem(**options: object):
    return build_problem(Selection(FeedForward, options), find_machine(Device.CPU))


# ---------------------------------------------------------------- run


def test_run_compares_times_and_records_every_executor(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    shown = succeed("run", "ffn", *SMALL, "--json", record)
    assert "reference (random" in shown
    data = json.loads(record.read_text())
    assert set(data) == {"workload", "device", "versions", "executors"}
    assert data["workload"] == {
        "name": "ffn",
        "m": 32,
        "hidden": 64,
        "ffn": 128,
        "gated": False,
        "activation": "gelu-tanh",
        "dtype": "bf16",
        **dict.fromkeys(("checkpoint", "up", "down", "gate", "norm")),
        "seed": 0,
    }
    assert (data["device"]["kind"], data["device"]["blas_threads"]) == ("cpu", 1)
    assert data["versions"]["interlace"] == interlace.__version__
    assert data["versions"]["numpy"] == np.__version__
    plan = {
        "tiles": "up 16x64x64, down 16x64x64",
        "items": 6,
        "semaphores": 4,
        "workers": 8,
        "dispatch": "ticket",
        "policy": "TileSync()",
        "order": "RowMajor(); WholeTiles(); OpAfterOp()",
        "verified": True,
    }
    assert [e["name"] for e in data["executors"]] == ["reference", "reference-random"]
    for executor in data["executors"]:
        assert set(executor) == {"name", "relative_error", "median_us", "p20_us", "p80_us", "plan"}
        assert executor["plan"] == plan
        assert 0 <= executor["relative_error"] < 1e-12
        assert 0 < executor["p20_us"] <= executor["median_us"] <= executor["p80_us"]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (
            ["two-copies", "--device", "cpu", "--m", "70", "--n", "90"],
            {"name": "two-copies", "n": 90},
        ),
        (["one-matmul", "--device", "cpu", "--m", "70", "--k", "90"], {"name": "one-matmul", "n": 384, "k": 90}),
        (["two-matmuls", *SMALL, "--dtype", "fp16"], {"name": "two-matmuls", "ffn": 128, "dtype": "fp16"}),
        (
            ["ffn", *SMALL, "--gated", "--dtype", "fp32"],
            {"gated": True, "activation": "silu", "dtype": "fp32"},
        ),
        (
            ["ffn", *SMALL, "--activation", "relu", "--split", "split-k:2", "--tile", "32x32x16"],
            {"activation": "relu"},
        ),
        (["ffn", *SMALL, "--dispatch", "static-balanced", "--order", "hilbert", "--workers", "3"], {"m": 32}),
    ],
)
def test_run_takes_every_workload_and_schedule(tmp_path: Path, arguments: list[str], facts: dict) -> None:
    record = tmp_path / "r.json"
    succeed("run", *arguments, "--json", record)
    data = json.loads(record.read_text())
    assert facts.items() <= data["workload"].items()
    assert all(e["relative_error"] < 1e-12 for e in data["executors"])


def test_the_default_on_a_cpu_is_minilm_in_three_waves() -> None:
    machine = find_machine(Device.CPU)
    task = cpu_problem()
    schedule = task.make_schedule(ScheduleOptions(), machine.spec)
    assert (task.facts["hidden"], task.facts["ffn"]) == (384, 1536)
    assert (task.graph.op("up").tiles, task.graph.op("down").tiles, schedule.workers) == (24, 6, 8)


def test_the_same_seed_draws_the_same_inputs_of_the_stated_sizes() -> None:
    task = cpu_problem(m=256, hidden=256, ffn=1024)
    first, again, other = task.inputs(1), task.inputs(1), task.inputs(2)
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first["x"], other["x"])
    assert np.std(first["x"]) == pytest.approx(1, rel=0.02)
    assert np.std(first["w_up"]) == pytest.approx(256**-0.5, rel=0.02)
    assert np.std(first["w_down"]) == pytest.approx(1024**-0.5, rel=0.02)
    assert not (first["w_up"].view(np.uint32) & 0xFFFF).any(), "bf16 keeps the upper 16 bits only"


def test_a_wrong_executor_fails_the_run_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.json"
    monkeypatch.setattr(run_module, "compute_relative_error", lambda found, right: math.nan)
    message = fail(1, "run", "ffn", *SMALL, "--json", record)
    assert message.startswith("error: 'reference' differs from float64 by nan")
    assert [e["relative_error"] for e in json.loads(record.read_text())["executors"]] == [None, None]


def test_an_executor_that_does_not_fit_is_left_out_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(runner: ReferenceRunner) -> dict[str, np.ndarray]:
        if runner.executor is RandomReferenceExecutor:
            raise TooManyWorkersError("plan has 264 workers, the device keeps 132 resident")
        return whole(runner)

    whole, record = ReferenceRunner.compute_outputs, tmp_path / "r.json"
    monkeypatch.setattr(ReferenceRunner, "compute_outputs", outputs)
    message = fail(0, "run", "ffn", *SMALL, "--json", record)
    assert message == "note: reference-random is left out: plan has 264 workers, the device keeps 132 resident"
    assert [e["name"] for e in json.loads(record.read_text())["executors"]] == ["reference"]
    asked = ["--executor", "reference", "--executor", "reference-random"]
    assert fail(1, "run", "ffn", *SMALL, *asked).startswith("error: plan has 264 workers")


def on_h200(kind: type[Workload] = FeedForward, **given: object) -> tuple[RunProblem, Plans]:
    """A problem as it is planned on a GPU that need not be here."""
    task = build_problem(Selection(kind, given), HostMachine(True, H200))
    return task, task.make_plans(ScheduleOptions(), H200)


def test_on_a_gpu_every_executor_runs_in_tiles_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    task, plans = on_h200(m=64)
    chosen = run_module._select_default(task, HostMachine(True, H200))
    assert [e.name for e in chosen] == [e.name for e in EXECUTOR_CLASSES if issubclass(e, DeviceExecutor)]
    planned = run_module._plan_executors(chosen, plans, named=False)
    assert (list(planned), capsys.readouterr().err) == (chosen, "")
    plans_made = {executor: proof.plan for executor, proof in planned.items()}
    for executor, plan in plans_made.items():
        executor.check_tiles(plan.graph, H200)
        assert plan.dispatch is executor.dispatches[0]
        assert plan.graph == retile(task.graph, executor.select_default(task.graph, H200).tiles)
    tiles = {format_tiling(plan.graph) for plan in plans_made.values()}
    assert format_tiling(plans_made[MegakernelExecutor].graph) != format_tiling(plans_made[SerialExecutor].graph)
    alike = {(format_tiling(plan.graph), plan.dispatch) for plan in plans_made.values()}
    assert len({id(proof) for proof in planned.values()}) == len(alike) < len(planned)
    assert len(tiles) == 2, "Triton executors share theirs, the megakernel has its own"


def test_options_of_the_plan_stand_for_every_executor_and_a_dispatch_for_those_that_run_it() -> None:
    task, _ = on_h200(m=256)
    order, dispatch = interlace.GroupedColumnMajor(2), DISPATCHES.plain["static"]
    schedule = ScheduleOptions(order=order, policy=interlace.RowSync(), workers=7, dispatch=dispatch)
    plans = task.make_plans(schedule, H200)
    for executor in run_module._select_default(task, HostMachine(True, H200)):
        plan = plans(executor).plan
        assert (plan.policy, plan.workers, plan.order.split(";")[0]) == ("RowSync()", 7, "GroupedColumnMajor(rows=2)")
        only_ticket = executor is PersistentTicketExecutor
        assert plan.dispatch is (interlace.Dispatch.TICKET if only_ticket else interlace.Dispatch.STATIC)


def test_an_executor_that_cannot_run_it_is_left_out_with_a_note_or_refused_if_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task, plans = on_h200(dtype=dtypes.fp32)
    chosen = run_module._select_default(task, HostMachine(True, H200))
    assert set(chosen) - set(run_module._plan_executors(chosen, plans, named=False)) == {MegakernelExecutor}
    assert capsys.readouterr().err.startswith("note: one_launch is left out: op 'up' has")
    with pytest.raises(BadInput, match=r"op 'up' has .*fp32"):
        run_module._plan_executors([MegakernelExecutor], plans, named=True)
    tiled = build_problem(Selection(FeedForward, {"m": 16}), HostMachine(True, H200), TileShape(16, 64, 64))
    planned = run_module._plan_executors(chosen, tiled.make_plans(ScheduleOptions(), H200), named=False)
    assert MegakernelExecutor not in planned, "a tile that is given stands for all"
    assert {format_tiling(proof.plan.graph) for proof in planned.values()} == {"up 16x64x64, down 16x64x64"}


def test_without_a_gpu_run_tells_what_the_workload_would_do_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_has_driver", lambda: False)
    record = tmp_path / "r.json"
    shown = succeed("run", "ffn", "--m", "32", "--policy", "row", "--json", record)
    data = json.loads(record.read_text())
    assert data["workload"]["hidden"] == 384
    assert [e["name"] for e in data["executors"]] == ["reference", "reference-random"]
    there = data["predicted"]
    assert {"hidden": 4096, "gated": True, "m": 32}.items() <= there["workload"].items()
    assert there["device"]["name"] == "NVIDIA H200"
    names = [name for each in there["executors"] for name in each["names"]]
    assert set(names) == {e.name for e in EXECUTOR_CLASSES if issubclass(e, DeviceExecutor)}
    assert names[0] == "one_launch", "what loads weights ahead comes first"
    times = [each["us"] for each in there["executors"]]
    assert times == sorted(times)
    for each in there["executors"]:
        assert each["policy"] == "RowSync()"
        assert each["busy"] + each["waiting"] + each["idle"] == pytest.approx(1)
        assert [(op["op"], op["limit"]) for op in each["ops"]] == [("up", "memory"), ("down", "memory")]
        assert 0 <= each["ops"][0]["start_us"] < each["ops"][1]["end_us"] <= each["us"]
    assert "predicted, nothing of this ran: gated FFN, 32 tokens" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("|")] == ["up", "down", "waiting"] * 2


@pytest.mark.parametrize("options", [["--device", "cpu"], ["--executor", "reference"]])
def test_a_run_that_is_meant_for_the_cpu_predicts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(machine_module, "_has_driver", lambda: False)
    record = tmp_path / "r.json"
    assert "predicted" not in succeed("run", "ffn", *options, "--json", record)
    assert "predicted" not in json.loads(record.read_text())


def test_what_takes_long_to_predict_is_left_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_has_driver", lambda: False)
    options = ["one-matmul", "--m", "64", "--n", "64", "--k", "64", "--tile", "16x16x16"]
    monkeypatch.setattr(gpu_forecast, "_MAX_TILES", 15)
    message = fail(0, "run", *options)
    told = "`interlace explain one-matmul --device cuda` does it"
    assert message.startswith(f"note: 16 tiles take long to predict on NVIDIA H200; {told}")


def test_a_picture_shows_when_workers_are_at_each_op_and_when_they_wait() -> None:
    # Worker 0: op a from 0 to 100, b from 100 to 200. Worker 1: a from 0 to 50, waits to 100, b from 100 to 125.
    columns = ([0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 100, 50], [0, 0, 100, 100])
    trace = Trace(*map(np.array, columns), np.array([100, 50, 200, 125]), ("a", "b"), "simulated")
    assert draw_picture(trace, workers=2, until_ns=400, columns=8) == [
        "  a        |█▒      |",
        "  b        |  ▓▒    |",
        "  waiting  | ▒      |",
    ]


def test_speeds_are_against_cuda_graph_where_it_ran() -> None:
    plan = build(cpu_problem().graph, Schedule(8))
    rows = [
        ResultRow(executor, plan, 1e-3, Timing(us, us, us))
        for executor, us in ((ReferenceExecutor, 9e5), (CudaGraphExecutor, 100.0), (PersistentTicketExecutor, 80.0))
    ]
    shown = table.build_results("t", rows)
    assert [c.header for c in shown.columns][-1] == "speed"
    assert list(shown.columns[-1].cells) == ["", "1.00x", "1.25x"]
    assert "speed" not in [c.header for c in table.build_results("t", rows[:1]).columns]


def test_numbers_keep_three_digits_that_mean_something() -> None:
    assert [table.format_number(v) for v in (0.12, 4.768, 36.0, 99.96, 100.4, 1234567.8)] == [
        "0.120",
        "4.77",
        "36.0",
        "100",
        "100",
        "1,234,568",
    ]


def test_relative_error_is_the_frobenius_norm_of_the_worst_output() -> None:
    right = {"a": np.array([[3.0, 4.0]]), "b": np.zeros((1, 2))}
    assert compute_relative_error({"a": np.array([[3.0, 4.5]]), "b": np.zeros((1, 2))}, right) == pytest.approx(0.1)
    assert compute_relative_error({"a": right["a"], "b": np.array([[0.0, 2.0]])}, right) == pytest.approx(2)
    assert math.isnan(compute_relative_error({"a": np.full((1, 2), np.nan), "b": np.ones((1, 2))}, right))


@pytest.mark.parametrize("gate", [False, True])
def test_run_takes_weights_from_a_checkpoint(tmp_path: Path, gate: bool) -> None:
    path, record = tmp_path / "w.safetensors", tmp_path / "r.json"
    random = np.random.default_rng(0)
    shapes = {"mlp.up": (48, 32), "mlp.down": (32, 48), "mlp.gate": (48, 32)}
    safetensors.numpy.save_file({n: random.standard_normal(s).astype(np.float16) for n, s in shapes.items()}, path)
    names = ["--up", "mlp.up", "--down", "mlp.down", *(["--gate", "mlp.gate"] if gate else [])]
    succeed("run", "ffn", "--device", "cpu", "--checkpoint", path, *names, "--json", record)
    data = json.loads(record.read_text())
    wanted = {"hidden": 32, "ffn": 48, "gated": gate, "dtype": "fp16", "checkpoint": str(path)}
    assert wanted.items() <= data["workload"].items()
    assert data["executors"][0]["relative_error"] < 1e-12
    message = fail(2, "run", "ffn", "--device", "cpu", "--checkpoint", path, "--up", "nope", "--down", "mlp.down")
    assert "has no tensor 'nope'; it has mlp.down, mlp.gate, mlp.up" in message


def test_checkpoint_weights_are_rounded_to_the_dtype_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    value = np.full((16, 16), 1 + 2.0**-9, np.float32)
    safetensors.numpy.save_file({"u": value, "d": value}, path)
    for dtype, kept in (("bf16", 1.0), ("fp32", 1 + 2.0**-9)):
        options = {"checkpoint": path, "up": "u", "down": "d", "dtype": interlace.dtype(dtype)}
        assert (cpu_problem(**options).inputs(0)["w_up"] == kept).all()


@pytest.mark.parametrize("executor", ["cuda_graph", "pdl"])
def test_executors_that_need_a_gpu_say_so(executor: str) -> None:
    message = fail(1, "run", "ffn", *SMALL, "--executor", executor)
    assert message.startswith(f"error: the {executor} executor needs a CUDA GPU, and 'CPU")


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    message = fail(1, "run", "ffn", *SMALL, "--executor", "serial")
    assert message.startswith("error: ")
    assert "TRITON_INTERPRET=1" in message or "interlace[gpu]" in message


# ---------------------------------------------------------------- plan and verify


def write_plan(path: Path, *options: str) -> dict:
    succeed("plan", "ffn", *SMALL, "--out", path, *options)
    return json.loads(path.read_text())


def test_a_planned_file_verifies_and_says_what_was_proved(tmp_path: Path) -> None:
    path, verdict = tmp_path / "plan.json", tmp_path / "v.json"
    data = write_plan(path)
    assert (len(data["items"]["op"]), data["semaphores"], data["workers"]) == (6, 4, 8)
    assert "safe" in succeed("verify", path, "--json", verdict)
    assert json.loads(verdict.read_text()) == {
        "verified": True,
        "edges": 4,
        "edges_by_wait": 4,
        "edges_by_order": 0,
        "longest_chain": 2,
        "workers_needed": 1,
        "in_sequence": True,
        "unproved": [],
    }


@pytest.mark.parametrize(
    ("options", "policy", "order"),
    [
        (
            ["--policy", "tile", "--chunk-waits"],
            "TileSync(), per k-chunk",
            "RowMajor(); WholeTiles(); OpAfterOp()",
        ),
        (
            ["--policy", "batched-row:4", "--order", "grouped:8"],
            "BatchedRowSync(rows=4)",
            "GroupedColumnMajor(rows=8); ",
        ),
        (["--policy", "strided:3", "--order", "serpentine"], "StridedSync(stride=3)", "Serpentine(); "),
        (["--order", "grouped-serpentine:2"], "TileSync()", "GroupedSerpentine(rows=2); "),
        (["--policy", "column", "--order", "column"], "ColumnSync()", "ColumnMajor(); "),
        (["--policy", "conv2d", "--order", "morton"], "Conv2DSync()", "Morton(); "),
        (["--policy", "kernel", "--split", "split-k:2"], "KernelSync()", "RowMajor(); SplitK(parts=2); "),
        (["--split", "stream-k:5"], "TileSync()", "RowMajor(); StreamK(parts=5); "),
        (["--interleave", "panels:1"], "TileSync()", "RowMajor(); WholeTiles(); RowPanels(rows=1"),
        (["--interleave", "half-rows"], "TileSync()", "RowMajor(); WholeTiles(); HalfRowPanels()"),
    ],
)
def test_names_become_the_objects_that_they_stand_for(
    tmp_path: Path, options: list[str], policy: str, order: str
) -> None:
    path = tmp_path / "plan.json"
    data = write_plan(path, *options)
    assert data["policy"] == policy
    assert data["order"].startswith(order)
    succeed("verify", path)


@pytest.mark.parametrize("name", DISPATCHES.plain)
def test_each_dispatch_is_planned_and_proved(tmp_path: Path, name: str) -> None:
    data = write_plan(tmp_path / "plan.json", "--dispatch", name, "--workers", "3")
    assert data["dispatch"] == name.split("-")[0]
    assert (data["items"]["worker"] == [-1] * 6) is (name in ("ticket", "queue", "dispatcher", "spawn"))
    shown = succeed("verify", tmp_path / "plan.json")
    resident = next(line for line in shown.splitlines() if "resident" in line)
    assert ("3" in resident) is (name not in ("ticket", "queue", "spawn"))


def test_a_plan_for_a_gpu_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    succeed("plan", "ffn", "--device", "cuda", "--preset", "llama3-8b", "--out", path)
    data = json.loads(path.read_text())
    assert [t["shape"] for t in data["graph"]["tensors"] if t["name"] == "w_up"] == [[14336, 4096]]
    assert data["workers"] == find_target(Device.CUDA).spec.sms > 100


def test_an_unsafe_plan_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    message = fail(1, "plan", "ffn", *SMALL, "--policy", "none", "--out", path)
    assert message.startswith("error: op 'down', tile (0, 0) reads hidden[0:16, 0:128]")
    assert not path.exists()


@pytest.mark.parametrize(
    ("part", "column", "row", "value", "kind"),
    [
        ("waits", "threshold", 0, 1, "ThresholdError"),
        ("waits", "threshold", 0, 3, "ThresholdError"),
        ("waits", "first", 0, 1, "CoverageError"),
        ("waits", "first", 1, 2, "SemaphoreError"),
        ("items", "tile", 5, 0, "ItemError"),
        ("items", "post", 4, 1, "ThresholdError"),
    ],
)
def test_a_planted_fault_is_exit_code_1_and_named(
    tmp_path: Path, part: str, column: str, row: int, value: int, kind: str
) -> None:
    path, verdict = tmp_path / "plan.json", tmp_path / "v.json"
    data = write_plan(path, "--policy", "row")
    data[part][column][row] = value
    path.write_text(json.dumps(data))
    message = fail(1, "verify", path, "--json", verdict)
    assert message.startswith(f"error: {kind}: ")
    written = json.loads(verdict.read_text())
    assert written["verified"] is False
    assert written["error"]["type"] == kind
    assert written["error"]["message"] in message


def test_files_that_are_no_plans_are_exit_code_2_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "plan.json"
    write_plan(good)
    text = good.read_text()
    contents = {
        "empty": b"",
        "binary": bytes(range(256)),
        "foreign": b'{"format": "something else"}',
        "list": b"[1, 2]",
        "nested": b"[" * 100_000,
        "huge number": b'{"format": ' + b"1" * 5000 + b"}",
        "half": text[: len(text) // 2].encode(),
        "later": text.replace('"schema_version":1', '"schema_version":999').encode(),
        "markup": text.replace('"bf16"', '"[/red]\\u001b[31m\\ud800"').encode(),
    }
    assert contents["later"] != text.encode() != contents["markup"]
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        result = invoke("verify", path)
        assert result.exit_code == 2, (name, result.output)
        assert result.stderr.startswith("error: "), name
        assert result.stderr.count("\n") == 1, name
        assert "\x1b" not in result.stderr, name
    assert "No such file" in fail(2, "verify", tmp_path / "absent")
    assert "is a folder, no file; name a plan" in fail(2, "verify", tmp_path)


def test_text_from_a_plan_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    data = write_plan(path)
    data["policy"] = "[bold]\x1b[31m\ud800[/nope]"
    path.write_text(json.dumps(data))
    out = succeed("verify", path)
    assert r"[bold]\x1b[31m\ud800[/nope]" in out


def test_no_damage_to_a_plan_escapes_as_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    good = json.dumps(write_plan(path))
    random = Random(0)
    values = [
        None,
        0,
        -1,
        1,
        2,
        7,
        1 << 40,
        1 << 63,
        -(1 << 63),
        10**30,
        10**4000,
        1.5,
        math.inf,
        "",
        "x",
        [],
        {},
        [1],
        True,
    ]

    def places(node: object, path: tuple = ()):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield (*path, key)
            if isinstance(value, (dict, list)):
                yield from places(value, (*path, key))

    # Most places lie in the access maps; draw evenly from the tables too, where the proof looks.
    everywhere = list(places(json.loads(good)))
    tables = [p for p in everywhere if p[0] in ("items", "waits", "workers", "semaphores", "dispatch")]
    codes = {0: 0, 1: 0, 2: 0}
    for _ in range(300):
        data = json.loads(good)
        node = data
        *way, last = random.choice(random.choice((everywhere, tables)))
        for key in way:
            node = node[key]
        if random.random() < 0.2:
            del node[last]
        else:
            node[last] = random.choice(values)
        path.write_text(json.dumps(data))
        result = invoke("verify", path)  # raises what is no exit
        codes[result.exit_code] += 1
        assert (result.exit_code == 0) == (result.stderr == "")
    assert min(codes[1], codes[2]) > 25, codes


# ---------------------------------------------------------------- trace


def slices_and_tracks(path: Path) -> tuple[list[dict], dict[int, str], list[dict]]:
    found = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    return [e for e in found if e["ph"] == "X"], names, [e for e in found if e["ph"] == "s"]


def test_trace_writes_a_slice_per_item_and_a_track_per_worker(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    options = ["--policy", "tile", "--interleave", "panels:1", "--workers", "3", "--tile", "16x32x64"]
    out = succeed("trace", "ffn", *SMALL, *options, "--out", path)
    assert "waiting, all workers" in out
    assert "https://ui.perfetto.dev" in out
    slices, tracks, arrows = slices_and_tracks(path)
    work = [s for s in slices if s["cat"] == "work"]
    assert sorted(s["args"]["item"] for s in work) == list(range(12))  # up 2 x 4, down 2 x 2
    assert len({tuple(s["args"]["tile"]) for s in work if s["name"] == "up"}) == 8
    assert list(tracks.values()) == ["SM 0", "SM 1", "SM 2"]
    assert len(arrows) == 4  # one for the one wait of each tile of down


def test_a_trace_under_stealing_tells_what_was_stolen(tmp_path: Path) -> None:
    options = ["--dispatch", "stealing", "--workers", "3", "--tile", "16x32x64"]
    out = succeed("trace", "ffn", *SMALL, *options, "--out", tmp_path / "t.json")
    assert "stolen │ no items" in " ".join(out.split())  # workers step in turn, and have as much to do


def test_run_traces_the_last_executor_that_can(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    out = succeed("run", "ffn", *SMALL, "--trace", path)
    assert "wrote a trace of reference to" in out
    slices, tracks, _ = slices_and_tracks(path)
    assert sum(s["cat"] == "work" for s in slices) == 6
    assert len(tracks) == 6, "two of the eight workers find nothing to do"
    message = fail(2, "run", "ffn", *SMALL, "--executor", "reference-random", "--trace", path)
    assert "none of reference-random can trace" in message
    assert "has no clock" in fail(2, "trace", "ffn", *SMALL, "--executor", "persistent", "--out", path)


def test_arrows_come_from_the_last_poster_of_what_is_awaited() -> None:
    graph = interlace.workloads.ffn(64, interlace.workloads.FFNShape(64, 256, interlace.Activation.RELU, False))
    schedule = interlace.Schedule(
        3,
        policy=interlace.TileSync(),
        split=interlace.SplitK(2),
        interleaving=interlace.RowPanels(1),
        chunk_waits=True,
    )
    plan = interlace.build(graph, schedule)
    executor = interlace.ReferenceExecutor(plan, seed=3)
    random = np.random.default_rng(0)
    executor.run({name: random.standard_normal(graph.tensor(name).shape) for name in graph.inputs})
    trace, items, waits = executor.trace, plan.items, plan.waits
    assert trace is not None
    found = find_arrows(plan, trace)
    assert len(found) == len(waits) > 0
    owner = waits.item
    for row, (producer, consumer) in enumerate(found.tolist()):
        awaited = waits.first[row] + waits.stride[row] * np.arange(waits.count[row])
        posters = np.flatnonzero(np.isin(items.post, awaited))
        assert consumer == owner[row]
        assert producer in posters
        assert trace.end_ns[producer] == trace.end_ns[posters].max()


# ---------------------------------------------------------------- names, files, the app itself


@pytest.mark.parametrize(
    ("option", "listed"),
    [
        ("--policy", "tile, row, column, conv2d, kernel, consumer, none, batched-row:4, strided:3"),
        ("--order", "row, column, serpentine, morton, hilbert, grouped:8, grouped-serpentine:8"),
        ("--interleave", "op-after-op, half-rows, panels:2, abreast:132"),
        ("--dispatch", "ticket, static, static-balanced"),
        ("--split", "whole, split-k:4, stream-k:132"),
        ("--preset", "llama3-8b, llama3-70b-tp8, gpt3-145b-tp8, minilm, relu, swiglu, gelu, swiglu-tp8"),
        ("--activation", "none, relu, gelu-tanh, silu"),
        ("--dtype", "bf16, fp16, fp32"),
        ("--device", "auto, cpu, cuda, h100, h200, FILE.toml"),
    ],
)
def test_unknown_names_list_the_valid_ones(tmp_path: Path, option: str, listed: str) -> None:
    message = fail(2, "plan", "ffn", "--out", tmp_path / "p.json", option, "nonsense")
    assert f"'nonsense'; use one of {listed}" in message


def test_unknown_workloads_and_executors_list_the_valid_ones() -> None:
    names = ", ".join(workload.name for workload in WORKLOADS)
    assert f"use one of {names}, or a plan file" in fail(2, "run", "fnf")
    assert f"use one of {EXECUTORS.listing}" in fail(2, "run", "ffn", "--executor", "cuda-graph")


@pytest.mark.parametrize("value", ["batched-row", "batched-row:", "batched-row:x", "batched-row:-1", "batched-row:²"])
def test_a_name_without_its_number_shows_an_example(tmp_path: Path, value: str) -> None:
    message = fail(2, "plan", "ffn", "--out", tmp_path / "p.json", "--policy", value)
    assert "takes a number, such as batched-row:4" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ffn", *SMALL, "--policy", "batched-row:0"], "use a positive number"),
        (["ffn", *SMALL, "--tile", "16"], "'16' is no tile"),
        (["ffn", *SMALL, "--tile", "17x64x64"], "multiples of 8"),
        (["ffn", *SMALL, "--gated", "--activation", "relu"], "a gated FFN uses silu, not relu"),
        (["ffn", *SMALL, "--up", "w"], "up names a weight of a checkpoint"),
        (
            ["ffn", "--device", "cpu", "--checkpoint", "x", "--up", "w"],
            "a checkpoint needs the names of up and down",
        ),
        (["ffn", *SMALL, "--checkpoint", "x"], "hidden, ffn cannot be combined with a checkpoint"),
        (["ffn", "--device", "cpu", "--m", "0"], "--m"),
    ],
)
def test_options_that_make_no_sense_are_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in fail(2, "plan", *arguments, "--out", tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(("workload", "option"), [("two-copies", ["--ffn", "8"]), ("two-matmuls", ["--no-gated"])])
def test_options_of_other_workloads_are_exit_code_2(tmp_path: Path, workload: str, option: list[str]) -> None:
    message = fail(2, "plan", workload, "--device", "cpu", *option, "--out", tmp_path / "p.json")
    assert no_option(message, option[0])


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, option: str) -> None:
    assert "does not exist; make it first" in fail(2, "run", "ffn", *SMALL, option, tmp_path / "no" / "x.json")
    assert "is a folder; name a file" in fail(2, "run", "ffn", *SMALL, option, tmp_path)


def test_outputs_replace_older_files_and_leave_nothing_else(tmp_path: Path) -> None:
    for name in ("r.json", "t.json"):
        (tmp_path / name).write_text("old")
    succeed("run", "ffn", *SMALL, "--json", tmp_path / "r.json", "--trace", tmp_path / "t.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "t.json"]
    for path in tmp_path.iterdir():
        json.loads(path.read_text())


def test_a_gpu_that_is_not_there_is_exit_code_1() -> None:
    try:
        find_machine(Device.CUDA)
    except NoDeviceError:
        assert fail(1, "run", "ffn", "--device", "cuda").startswith("error: ")
    else:
        pytest.skip("there is a GPU")


@pytest.mark.parametrize(
    "command",
    [
        *("run ffn", "plan ffn", "explain ffn", "verify", "trace ffn", "traffic one-matmul", "order", "tune ffn"),
        *("profile ffn", "bench ffn", "bench sync", "bench dispatch"),
    ],
)
def test_every_command_teaches_with_an_example(command: str) -> None:
    help_text = " ".join(succeed(*command.split(), "--help").split())
    assert f"Example: interlace {command} " in help_text


@pytest.mark.parametrize("command", ["run", "plan", "trace", "explain", "traffic", "tune", "profile", "bench"])
def test_every_command_lists_every_workload_and_a_workload_its_own_options(command: str) -> None:
    listed = succeed(command, "--help")
    for workload in WORKLOADS:
        assert workload.name in listed
        shown = succeed(command, workload.name, "--help")
        own = {f"--{field.name.replace('_', '-')}" for field in fields(workload)}
        other = {"--ffn", "--gated", "--checkpoint"} - own
        assert all(option in shown for option in own)
        assert not [option for option in other if f"│ {option} " in shown]


def test_the_app_names_its_version_and_commands(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert succeed("--version") == f"interlace {interlace.__version__}\n"
    monkeypatch.setattr("sys.argv", ["interlace", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    commands = ("run", "plan", "verify", "trace", "bench", "tune", "profile", "order", "traffic", "generate")
    assert all(name in shown for name in commands)


def test_explain_says_what_it_chose_and_why(tmp_path: Path) -> None:
    path = tmp_path / "why.json"
    options = ["--preset", "llama3-8b", "--m", "512", "--device", "cuda"]
    result = invoke("explain", "ffn", *options, "--json", str(path))
    assert result.exit_code == 0, result.output
    told = json.loads(path.read_text())
    assert told["predicted_us"] < told["plain_us"]
    assert told["dram_read_bytes"] == sum(told["dram_read_bytes_by_tensor"].values()) < told["plain_dram_read_bytes"]
    assert {reason["decision"] for reason in told["reasons"]} >= {"executor", "bodies", "order"}
    assert told["executor"] == "one_launch"
    times = {name: each["us"] for each in told["executors"] for name in each["names"]}
    assert set(times) == {e.name for e in EXECUTOR_CLASSES if issubclass(e, DeviceExecutor)}
    assert times["one_launch"] == told["predicted_us"] == min(times.values())
    assert [op["op"] for op in told["ops"]] == ["up", "down"]
    assert all(bound["source"] for bound in told["bounds"])
    low, high = told["dram_read_interval_bytes"]
    assert low <= told["dram_read_bytes"] <= high
    nearest = told["nearest_bound"]
    assert {key: nearest[key] for key in told["bounds"][0]} in told["bounds"]
    assert nearest["ratio"] == pytest.approx(nearest["moved_bytes"] / nearest["bytes"])
    assert f"{nearest['ratio']:.2f} times that" in " ".join(result.output.replace("│", " ").split())
    flops_us = 6 * 512 * 4096 * 14336 / H200.flops_per_s(dtypes.bf16) * 1e6
    assert told["floor_us"] == pytest.approx(flops_us)
    assert told["floor_us"] < told["predicted_us"]
    assert [(each["op"], list(each["waits_for"])) for each in told["hand_overs"]] == [("up", []), ("down", ["up"])]
    assert "no deadlock, no race" in result.output


def test_explain_names_the_bounds_of_convolutions_and_how_far_the_plan_is(tmp_path: Path) -> None:
    path = tmp_path / "why.json"
    options = ["--preset", "resnet-512", "--device", "cuda", "--executor", "one_launch", "--json", str(path)]
    output = " ".join(succeed("explain", "conv-pair", *options).replace("│", " ").split())
    bounds = {(bound["label"], bound["counts"]): bound for bound in json.loads(path.read_text())["bounds"]}
    both = "loads and stores"
    assert list(bounds) == [("safe", "loads"), ("safe", both), ("leading order", both), ("best tiling", both)]
    assert {bound["name"] for bound in bounds.values()} == {"2 chained convolutions"}
    image, weights = 7 * 7 * 512 * 2, 2 * 9 * 512 * 512 * 2
    tiling = bounds["best tiling", both]
    assert tiling["bytes"] == 2 * image + weights
    # The plan loads the biases too, and stores the image between the two, and any partial sums.
    assert tiling["moved_bytes"] >= 3 * image + weights + 2 * 512 * 2
    assert tiling["ratio"] == pytest.approx(tiling["moved_bytes"] / tiling["bytes"])
    moved = f"the plan moves {tiling['ratio']:.2f} times that"
    assert f"bound, best tiling {tiling['bytes'] / 1e6:.1f} MB, {both}; {moved}" in output


def test_explain_takes_one_executor_and_a_tile_of_one() -> None:
    shape = ["--preset", "llama3-8b", "--m", "64", "--device", "cuda"]
    alone = succeed("explain", "ffn", *shape, "--executor", "serial", "--tile", "64x64x64")
    assert "up 64x64x64, down 64x64x64" in alone
    assert "one_launch" not in alone
    message = fail(2, "explain", "ffn", "--dtype", "fp32", "--device", "cuda", "--executor", "one_launch")
    assert message.startswith("error: op 'up' has ")


def test_explain_refuses_what_cannot_be_built() -> None:
    result = invoke("explain", "ffn", "--gated", "--activation", "relu")
    assert result.exit_code == 2
    assert "error: a gated FFN uses silu" in result.output


@pytest.mark.parametrize("name", ["run", "plan", "explain", "trace", "traffic", "bench", "tune", "profile"])
def test_help_of_a_group_lists_each_workload_once_and_shows_an_example(name: str) -> None:
    shown = succeed(name, "--help")
    cells = [line.strip("│ ").split(" ")[0] for line in shown.splitlines() if line.startswith("│")]
    assert {workload.name: cells.count(workload.name) for workload in WORKLOADS} == {w.name: 1 for w in WORKLOADS}
    assert f"Example: interlace {name} " in shown
