"""Launches whose bytes are counted for the picture of bounds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import interlace as il

from ..benchmarks import load_script


@pytest.fixture(scope="module")
def traffic() -> Any:
    return SimpleNamespace(**load_script("dram_traffic"))


@pytest.fixture
def bounds() -> dict[str, Any]:
    return load_script("bounds")


def test_names_select_cases_of_one_record(traffic: Any) -> None:
    assert traffic.select_cases([]) == traffic.cases()
    matmuls = traffic.select_cases(["matmul"])
    assert len(matmuls) == 56
    assert {case.name for case in matmuls} == {"matmul"}
    chosen = traffic.select_cases(["mlp", "convolutions"])
    assert {case.name for case in chosen} == {"mlp", "convolutions"}
    assert traffic.select_cases(["bounds"]) == list(traffic.BOUNDS_CASES)
    names = {"gemm", "mlp", "attention", "convolutions", "convolutions-512"}
    assert {case.name for case in traffic.BOUNDS_CASES} == names


@pytest.mark.parametrize("names", [["relu", "mlp"], ["conv"]])
def test_unknown_and_mixed_names_are_refused(traffic: Any, names: list[str]) -> None:
    with pytest.raises(SystemExit, match=f"--case {' '.join(names)}: use names of one record: gelu, matmul"):
        traffic.select_cases(names)


def test_each_problem_has_safe_plans_that_the_megakernel_runs(traffic: Any) -> None:
    for case in {case.name: case for case in traffic.BOUNDS_CASES}.values():
        plan = case.plan()
        assert plan.workers == 132
        il.MegakernelExecutor.check_tiles(plan.graph, il.H200)
        il.verify(plan)
    mlp, attention = (traffic.select_cases([name])[0].plan().graph for name in ("mlp", "attention"))
    assert mlp.tensor(mlp.inputs[0]).shape == (1792, 12288)
    assert attention.tensor("scores").shape == (4096, 4096)


def test_cases_of_one_launch_share_a_binary(traffic: Any) -> None:
    shared = {case.binary for case in traffic.BOUNDS_CASES}
    tiles = {(case.facts["name"], case.facts["tiles"]) for case in traffic.BOUNDS_CASES}
    assert len(shared) == len(tiles) < len(traffic.BOUNDS_CASES)


def test_the_picture_takes_the_least_count_of_a_problem(bounds: dict[str, Any], traffic: Any, tmp_path: Path) -> None:
    find_counted = bounds["find_counted"]
    one, two, *_ = traffic.select_cases(["convolutions"])
    counts = [{"dram_read_bytes": read, "dram_write_bytes": 5} for read in (20, 10)]
    rows = [{**case.facts, **count} for case, count in zip((one, two), counts, strict=True)]
    record = tmp_path / "counted.json"
    record.write_text(json.dumps({"rows": rows}))
    find_counted.__globals__["COUNTED"] = record
    found = find_counted("convolutions")
    assert (found["bytes"], found["read_bytes"], found["interleaving"]) == (15, 10, two.interleaving)
    assert found["predicted_bytes"] - found["predicted_read_bytes"] == 2 * 32 * 56 * 56 * 64 * 2
    assert find_counted("mlp") is None
    # The matmul was counted before these cases were.
    assert (find_counted("gemm")["bytes"], find_counted("gemm")["tiles"]) == (1_357_350_912, "matmul 128x256x64")
