"""Plan files on the command line: run like workloads, and read as what they are, untrusted."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import interlace as il
from interlace.cli import run
from interlace.cli.machine import HostMachine
from interlace.cli.plan_file import load_problem

from ..cuda_bodies import chain
from .commands import SMALL, fail, invoke, no_option, succeed
from .test_params import ffn, make_double_op

NORM = ", provided that op 'norm' touches what its access maps say, which is not proved"


def write(path: Path, plan: il.Plan, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(plan.to_json()) | changes))
    return path


def test_a_plan_file_says_of_which_ops_nothing_holds_the_text_to_what_they_declare(tmp_path: Path) -> None:
    plan = il.build(chain(64, il.MatmulTile(64, 64, 64)), il.Schedule(4))
    path, verdict = write(tmp_path / "p.json", plan), tmp_path / "v.json"
    read = il.read_plan(path.read_text())
    assert read == plan
    assert [op.body for op in read.graph.ops if op.name == "norm"] == [None]
    for proof in (il.verify(plan), il.verify(read), il.verify(il.read_plan(read.to_json()))):
        assert proof.unproved_ops == ("norm",)
        assert str(proof).endswith(f"no race{NORM}")
    shown = " ".join(succeed("verify", path, "--json", verdict).split())
    assert f"no race{NORM}" in shown
    assert json.loads(verdict.read_text())["unproved"] == ["norm"]


def test_access_maps_of_a_file_that_no_kernel_makes_anew_are_named_as_unproved(tmp_path: Path) -> None:
    """A narrowed map is one that a plan may have for a kernel that nobody knows, and the proof says so."""
    x, y, z, w = (il.Tensor(name, (8, 8), il.fp32) for name in "xyzw")
    own, every = (il.axes(1)[0].block(2), il.ALL), (il.ALL, il.ALL)
    read, other = (il.Kernel(name, reference=il.Reference(lambda acc, read, params: read)) for name in ("sum", "other"))
    ops = (
        other.make_op("first", (4,), {"i": (x, own)}, {"o": (y, own)}),
        il.copy("second", y, z, tile=(2, 8)),
        read.make_op("third", (4,), {"i": (z, every)}, {"o": (w, own)}),
    )
    plan = il.build(il.Graph("g", (x, y, z, w), ops, ("x",), ("w",)), il.Schedule(4))
    assert il.verify(plan).unproved_ops == ()
    for kernels in ((), (read,), (read, other)):
        assert il.verify(il.read_plan(plan.to_json(), kernels)).unproved_ops == ("first", "third")
    made = replace(read, make=lambda name, tensors, params: ops[2])
    assert il.verify(il.read_plan(plan.to_json(), [made, other])).unproved_ops == ("first",)
    path, verdict = write(tmp_path / "p.json", plan), tmp_path / "v.json"
    says = "no race, provided that ops 'first', 'third' touch what their access maps say, which is not proved"
    assert says in " ".join(succeed("verify", path, "--json", verdict).split())
    assert json.loads(verdict.read_text())["unproved"] == ["first", "third"]


@pytest.mark.parametrize(
    "schedule",
    [
        il.Schedule(3, split={"down": il.SplitK(2)}, chunk_waits=True),
        il.Schedule(3, il.Dispatch.STATIC, policy=il.RowSync()),
        il.Schedule(1, policy=il.NoSync()),
    ],
    ids=["split", "static", "one worker"],
)
def test_a_plan_file_runs_as_it_stands(tmp_path: Path, schedule: il.Schedule) -> None:
    plan = il.build(ffn(), schedule)
    path, record, trace = write(tmp_path / "p.json", plan), tmp_path / "r.json", tmp_path / "t.json"
    shown = succeed("run", path, "--device", "cpu", "--json", record, "--trace", trace, "--seed", 3)
    assert f"{len(plan.items)} items" in shown
    data = json.loads(record.read_text())
    assert data["workload"] == {"name": "plan", "file": str(path), "graph": "ffn", "seed": 3}
    for executor in data["executors"]:
        told = executor["plan"]
        assert (told["items"], told["dispatch"]) == (len(plan.items), plan.dispatch.value)
    assert [e["name"] for e in data["executors"]] == ["reference", "reference-random"]
    assert all(e["relative_error"] < 1e-12 for e in data["executors"])
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") != "wait" and e["ph"] == "X"]
    assert len(slices) >= len(plan.items)
    assert "wrote" in succeed("trace", path, "--device", "cpu", "--out", trace)


def test_a_planned_workload_runs_from_its_file_and_its_summary_says_what_was_planned(tmp_path: Path) -> None:
    path, summary = tmp_path / "plan.json", tmp_path / "s.json"
    succeed("plan", "ffn", *SMALL, "--out", path, "--json", summary)
    told = json.loads(summary.read_text())
    assert told["workload"] | {"m": 32, "hidden": 64, "ffn": 128} == told["workload"]
    assert told["device"]["kind"] == "cpu"
    assert told["graph"] == {
        "name": "ffn",
        "ops": [
            {"name": "up", "kernel": "matmul", "grid": [2, 2], "tiles": 4},
            {"name": "down", "kernel": "matmul", "grid": [2, 1], "tiles": 2},
        ],
    }
    assert {"items": 6, "waits": 2, "semaphores": 4, "workers": 8, "dispatch": "ticket"}.items() <= told["plan"].items()
    assert {"verified": True, "edges": 4, "longest_chain": 2}.items() <= told["proof"].items()
    assert "reference" in succeed("run", path, "--device", "cpu")


def test_a_plan_file_runs_on_those_that_take_it_and_a_note_tells_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "p.json", il.build(ffn(), il.Schedule(1, policy=il.NoSync())))
    task, plans = load_problem(path, il.H200)
    able = run._plan_executors(run._select_default(task, HostMachine(True, il.H200)), plans, named=False)
    assert {e.name for e in able} == {*("reference", "serial", "cuda_graph", "pdl", "streams", "persistent-ticket")}
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["semaphore_streams", "persistent-static", "one_launch"]
    assert "only the order of one worker enforces that" in notes[0]


def test_options_beside_a_plan_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", il.build(ffn(), il.Schedule(2)))
    for options in (["--m", 3], ["--policy", "row"], ["--chunk-waits"], ["--tile", "16x16"]):
        assert no_option(fail(2, "run", path, *options), options[0])
    for command in (("plan", path, "--out", tmp_path / "x.json"), ("explain", path)):
        assert "is a plan already; `interlace verify` proves it" in fail(2, *command)
    message = fail(2, "run", path, "--device", "cpu", "--executor", "persistent-static")
    assert "the persistent-static executor runs plans with static dispatch" in message


def test_only_a_plan_that_is_safe_and_of_known_kernels_runs(tmp_path: Path) -> None:
    plan = il.build(ffn(), il.Schedule(2))
    data = json.loads(plan.to_json())
    data["graph"]["ops"][1]["params"]["K"] = 100_000
    for command in ("run", "verify"):
        message = fail(2, command, write(tmp_path / "p.json", plan, graph=data["graph"]))
        assert "op 'down' has param K 100000" in message
    waits = data["waits"] | {"threshold": [9 for _ in data["waits"]["threshold"]]}
    assert "to reach 9, but 1 tiles post it" in fail(1, "run", write(tmp_path / "p.json", plan, waits=waits))
    x, y = (il.Tensor(name, (10,), il.fp32) for name in "xy")
    own = il.build(il.Graph("own", (x, y), (make_double_op("d", x, y, 4),), ("x",), ("y",)), il.Schedule(2))
    path = write(tmp_path / "p.json", own)
    assert "safe" in succeed("verify", path)
    assert "op 'd' has kernel 'double', which is not built in" in fail(2, "run", path)


def test_a_plan_of_tensors_beyond_memory_is_proved_but_not_begun(tmp_path: Path) -> None:
    k = 2**30
    x, w, y = (il.Tensor(n, shape, il.bf16) for n, shape in (("x", (64, k)), ("w", (64, k)), ("y", (64, 64))))
    graph = il.Graph("wide", (x, w, y), (il.matmul("mm", x, w, y),), ("x", "w"), ("y",))
    path = write(tmp_path / "p.json", il.build(graph, il.Schedule(1)))
    assert "safe" in succeed("verify", path)
    message = fail(2, "run", path)
    # The two inputs in float32; all tensors in float64, twice for the two reference executors, and what is right.
    gigabytes = round((2 * 64 * k * 4 + 2 * (2 * 64 * k + 64 * 64) * 8 + 64 * 64 * 8) / 1e9)
    assert f"inputs, intermediates and results take {gigabytes:,} GB, and this machine has" in message


def test_paths_that_are_no_files_end_at_once(tmp_path: Path) -> None:
    fifo, sparse, latin = tmp_path / "fifo.json", tmp_path / "large.json", tmp_path / "latin.json"
    os.mkfifo(fifo)
    sparse.touch()
    os.truncate(sparse, 2 << 30)
    latin.write_bytes('{"name": "é"}'.encode("latin-1"))
    for command in ("verify", "run"):
        assert "is a device or pipe, no file" in fail(2, command, fifo)
        assert "is a device or pipe, no file" in fail(2, command, "/dev/zero")
        assert "is a folder, no file" in fail(2, command, tmp_path)
        assert "has 2147483648 bytes, a plan has at most" in fail(2, command, sparse)
        assert "is not text, so no plan" in fail(2, command, latin)
        assert "No such file" in fail(2, command, tmp_path / "absent.json")
    assert "conv-chain, resnet-block, or a plan file" in fail(2, "run", tmp_path / "absent")


def test_names_of_a_plan_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "[red]a[/red][/]\x1b[31m\n\u202e"
    x, y = il.Tensor("x" + name, (32, 32), il.fp32), il.Tensor("y" + name, (32, 32), il.fp32)
    z = il.Tensor("z", (32, 32), il.fp32)
    ops = (il.copy("c" + name, x, y, (16, 16)), il.copy("d" + name, y, z, (16, 16)))
    plan = il.build(il.Graph("g" + name, (x, y, z), ops, (x.name,), ("z",)), il.Schedule(2))
    path, record, trace = write(tmp_path / "p.json", plan, policy=name), tmp_path / "r.json", tmp_path / "t.json"
    for command in (("verify", path), ("run", path, "--json", record, "--trace", trace, "--device", "cpu")):
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output
        shown = "".join(c for c in result.output if c not in "│\n ")
        assert r"[red]a[/red][/]\x1b[31m\u202e" in shown
    assert json.loads(record.read_text())["workload"]["graph"] == "g" + name
    assert any(name in e["name"] for e in json.loads(trace.read_text())["traceEvents"])
    broken = json.loads(plan.to_json())
    broken["waits"]["threshold"][0] = 7
    path.write_text(json.dumps(broken))
    result = invoke("verify", path)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert result.stderr.count("\n") == 1
