"""Predictions that docs/related.md compares with published work."""

from __future__ import annotations

import json
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import pytest

from ..benchmarks import BENCHMARKS, load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**load_script("related"))


def test_a_chain_reads_its_scores_again_only_op_by_op_from_a_small_cache(script: Any) -> None:
    by_op, by_head, launch = script.predict_chain(heads=4, capacities_mib=(1, 60))
    compulsory = 4 * 3 * 512 * 64 * 2
    assert [row["compulsory_bytes"] for row in (by_op, by_head, launch)] == [compulsory] * 3
    assert by_op["passed_on_bytes"] == 4 * 512 * 512 * 2
    assert by_op["read_bytes"]["1"] > 2 * by_head["read_bytes"]["1"]
    assert {row["read_bytes"]["60"] for row in (by_op, by_head, launch)} == {compulsory}


def test_time_steps_up_where_a_second_wave_begins(script: Any) -> None:
    one, two = (script.predict_width(columns) for columns in (2048, 2560))
    assert (one["tiles"], two["tiles"]) == (128, 160)
    assert one["waves"] < 1 < two["waves"]
    assert two["row_major_us"] > 1.8 * one["row_major_us"]
    assert one["row_major_us"] < two["explained_us"] < two["row_major_us"]
    assert two["megakernel_us"] < 1.3 * one["megakernel_us"]


def test_the_page_quotes_the_records() -> None:
    report = SimpleNamespace(**load_script("report"))
    published = report.cusync.read_published()
    mlps = [key[:-1] for key in published if key[0] == "mlp" and key[-1] == "A100"]
    policies = geometric_mean(report.cusync.compute_best_policy(key, "A100") for key in mlps)
    stream_k = geometric_mean(report.cusync.compute_published(key, "A100")["stream-K"] for key in mlps)
    tiled = report.ffn.tiled_ratios(json.loads((BENCHMARKS / "results" / "ffn-models-h200.json").read_text()))
    shares = []
    for row in json.loads((BENCHMARKS / "results" / "ragged-h200.json").read_text())["rows"]:
        sdpa = min(way["median_us"] for name, way in row["ways"].items() if name.startswith("SDPA"))
        shares.append(sdpa / row["ways"]["ticket"]["median_us"])
    page = (BENCHMARKS.parent / "docs" / "related.md").read_text()
    for quoted in (
        f"MLPs at {policies:.2f} times the speed of CUTLASS's launches on an A100",
        f"have it at {stream_k:.2f} times launches on the same MLPs",
        f"Plain Triton bodies reach [{geometric_mean(tiled):.2f}]",
        f"[{min(shares):.2f} to {max(shares):.2f} times](performance.md#sequences-of-mixed-length) the speed of SDPA",
    ):
        assert quoted in page, quoted


def test_lines_say_where_a_plan_reads_no_more_than_it_must() -> None:
    related = SimpleNamespace(**load_script("report")).related
    row = {"compulsory_bytes": 5, "read_bytes": {"1": 9, "2": 5, "4": 6, "8": 5, "60": 5}}
    assert (related.find_least_mib(row), related.find_last_mib(row)) == (8, 4)
    widths = [
        {"columns": n, "waves": 1.0, "row_major_us": us, "explained_us": us, "megakernel_us": us}
        for n, us in ((1024, 10.0), (2048, 11.0), (3072, 30.0), (4096, 31.0))
    ]
    assert "11.0 us with 2,048 columns (1.00 waves) and 30.0 with 3,072" in related.widths_line({"widths": widths})
