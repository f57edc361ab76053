"""Where commands write: never over what they read or write too, and to standard output for ``-``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from interlace.cli import outputs, traffic_plot
from interlace.cli import run as run_module
from interlace.cli.traffic_study import Study

from .commands import SMALL, fail, invoke, succeed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with a plan, other names of it, and a checkpoint."""
    monkeypatch.chdir(tmp_path)
    succeed("plan", "ffn", *SMALL, "--out", "plan.json")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to("plan.json")
    (tmp_path / "new-link.json").symlink_to("new.json")
    os.link("plan.json", "hard.json")
    weights = {"u": np.ones((32, 16), np.float32), "d": np.ones((16, 32), np.float32)}
    safetensors.numpy.save_file(weights, "weights")
    return tmp_path


@pytest.mark.parametrize("name", ["plan.json", "./plan.json", "folder/../plan.json", "link.json", "hard.json", "{0}"])
def test_what_is_read_is_not_written(here: Path, name: str) -> None:
    before = Path("plan.json").read_bytes()
    message = fail(2, "verify", "plan.json", "--json", name.format(here / "plan.json"))
    assert "one file" in message or "named twice" in message
    assert Path("plan.json").read_bytes() == before


@pytest.mark.parametrize("command", [["run", "--json"], ["run", "--trace"], ["trace", "--out"]])
def test_a_plan_that_runs_is_not_written(here: Path, command: list[str]) -> None:
    name, option = command
    before = Path("plan.json").read_bytes()
    assert "are one file" in fail(2, name, "plan.json", option, "link.json")
    assert Path("plan.json").read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        ["run", "ffn", "--json", "weights"],
        ["plan", "ffn", "--out", "./weights"],
        ["trace", "ffn", "--out", "weights"],
        ["explain", "ffn", "--json", "weights"],
    ],
)
def test_a_checkpoint_is_not_written(here: Path, command: list[str]) -> None:
    before = Path("weights").read_bytes()
    weights = ["--device", "cpu", "--checkpoint", "weights", "--up", "u", "--down", "d"]
    assert "give each output a file of its own" in fail(2, *command, *weights)
    assert Path("weights").read_bytes() == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x", "x"),
        ("x", "./x"),
        ("folder/../x", "x"),
        ("new.json", "new-link.json"),
        ("hard.json", "plan.json"),
        ("-", "-"),
    ],
)
def test_two_outputs_are_two_files(here: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    monkeypatch.setattr(run_module, "build_problem", lambda *_: pytest.fail("refused only after work was done"))
    message = fail(2, "run", "ffn", *SMALL, "--json", first, "--trace", second)
    assert "give each output a file of its own" in message
    assert not (here / "x").exists()


def test_a_picture_and_its_figures_are_two_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_plot, "check_installed", lambda: None)
    monkeypatch.setattr(Study, "from_workload", lambda *_: pytest.fail("refused only after work was done"))
    assert "named twice" in fail(2, "traffic", "one-matmul", "--sweep", "--plot", "a.png", "--json", "a.png")


def test_files_that_differ_are_taken(here: Path) -> None:
    succeed("run", "ffn", *SMALL, "--json", "x", "--trace", "X")
    assert json.loads(Path("x").read_text())["executors"]
    assert json.loads(Path("X").read_text())["traceEvents"]


def test_standard_output_redirected_to_the_output_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.stat("plan.json")
    monkeypatch.setattr(outputs, "_identify_stdout", lambda: (found.st_dev, found.st_ino))
    assert "what standard output goes to" in fail(2, "plan", "ffn", *SMALL, "--out", "plan.json")


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["plan", "ffn", *SMALL, "--out", "-"], "graph"),
        (["plan", "ffn", *SMALL, "--out", "p.json", "--json", "-"], "proof"),
        (["run", "ffn", *SMALL, "--json", "-"], "executors"),
        (["run", "plan.json", "--json", "-"], "executors"),
        (["run", "ffn", *SMALL, "--trace", "-"], "traceEvents"),
        (["trace", "ffn", *SMALL, "--out", "-"], "traceEvents"),
        (["verify", "plan.json", "--json", "-"], "verified"),
    ],
)
def test_a_dash_is_standard_output_and_what_is_for_people_goes_to_stderr(
    here: Path, command: list[str], key: str
) -> None:
    result = invoke(*command)
    assert result.exit_code == 0
    assert key in json.loads(result.stdout)
    assert "items" in result.stderr
    assert "wrote standard output" not in result.stderr
    assert not Path("-").exists()


def test_outputs_that_standard_output_does_not_take_say_so(here: Path) -> None:
    assert "name a file" in fail(2, "bench", "ffn", "--out", "-")
    assert "ends in .png" in fail(2, "traffic", "one-matmul", "--sweep", "--plot", "-")
    assert list(Path().glob("-")) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "is a folder; name a file"),
        ("folder/", "is a folder; name a file"),
        ("new/", "is a folder; name a file"),
        ("", "is a folder; name a file"),
        ("plan.json/x", "does not exist; make it first"),
        ("none/x", "does not exist; make it first"),
        ("/dev/full", "is no regular file"),
        ("/proc/x", "cannot write"),
        ("n" * 300, "cannot write"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(here: Path, name: str, message: str) -> None:
    before = sorted(path.name for path in here.rglob("*"))
    assert message.replace(" ", "") in fail(2, "plan", "ffn", *SMALL, "--out", name).replace(" ", "")
    assert sorted(path.name for path in here.rglob("*")) == before


@pytest.mark.parametrize("name", ["n" * 255, "ü×.json", "a\nb.json", " ", "n\udcff.json"])
def test_odd_names_are_written(here: Path, name: str) -> None:
    succeed("plan", "ffn", *SMALL, "--out", name)
    assert json.loads((here / name).read_text())["semaphores"] == 4
