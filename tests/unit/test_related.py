"""Predictions that docs/related.md compares with published work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ..benchmarks import load_script


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
