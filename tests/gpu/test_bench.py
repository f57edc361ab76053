"""Benchmarks on the GPU: every executor that can is measured, and the parts of synchronisation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from interlace.bench import dispatch
from interlace.bench.sync import measure_costs
from interlace.bench.workload import CANDIDATES
from interlace.cli import app
from interlace.deploy import current_device
from interlace.executors.gpu import find_spec
from interlace.workloads import FeedForward, FFNLayers, TwoCopies, TwoMatmuls, Workload


def bench(path: Path, *arguments: object) -> list[dict[str, Any]]:
    """The rows of the record."""
    result = CliRunner().invoke(app, ["bench", *map(str, arguments), "--out", str(path)])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


@pytest.mark.parametrize(
    ("problem", "compiled"),
    [
        (FeedForward(1024, 2048, 16), True),
        (FeedForward(1024, 2048, 200), False),
        (TwoMatmuls(1024, 2048), False),
        (FFNLayers(16, 1024, 2048, 16), False),
    ],
    ids=str,
)
def test_every_executor_that_can_is_measured_and_right(tmp_path: Path, problem: Workload, compiled: bool) -> None:
    options = [f"--{name}={getattr(problem, name)}" for name in ("m", "hidden", "ffn")]
    options += ["--no-gated", "--activation=gelu-tanh"] if isinstance(problem, FeedForward) else []
    (row,) = bench(tmp_path / "r.json", problem.name, *options, *([] if compiled else ["--no-compile"]))
    graph = problem.build_graph(current_device())
    assert set(row["executors"]) == {
        e.name for e in CANDIDATES if e.fallback_reason(graph, current_device()) is None
    }, row["left_out"]
    most = 1.5 * row["library_relative_error"]
    assert all(0 < executor["relative_error"] <= most for executor in row["executors"].values())
    assert len(row["libraries"]) == (6 if compiled else 2)
    assert row["floor_us"] > 0
    assert (row["stream"] is not None) is (current_device().capability == (9, 0))
    assert (row["layer"] is not None) is (problem.layer_ports is not None)
    assert row["layer"] is None or set(row["layer"]["executors"]) == set(row["executors"])


def test_copies_are_exact_and_rows_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert TwoCopies.layer_ports is None
    (first,) = bench(path, "two-copies", "--m", 4096, "--no-compile")
    assert {executor["relative_error"] for executor in first["executors"].values()} == {0.0}
    assert bench(path, "two-copies", "--m", 4096, "--m", 256, "--no-compile", "--update")[0] == first
    assert len(json.loads(path.read_text())["rows"]) == 2


def test_every_part_of_synchronisation_has_a_cost() -> None:
    found = measure_costs()
    assert set(found) == {"post", "satisfied wait", "satisfied wait of 112", "one-way hand-over", "ticket"}
    assert all(50 < ns < 20_000 for ns in found.values()), found


def test_each_dispatch_runs_every_item_and_none_is_faster_than_can_be() -> None:
    told = dispatch.measure_rows(find_spec("cuda"), 1000, measure=True)
    assert {row.costs for row in told} == {*dispatch.COSTS}
    assert {(row.executor, row.dispatch) for row in told} >= {
        ("persistent", "static"),
        ("persistent", "ticket"),
    }
    assert all(row.us is not None and row.us >= 0.99 * row.ideal_us for row in told)
