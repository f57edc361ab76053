"""Records in the studio: speedups and their limits are those of the rows, and other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlace.core.errors import StudioError
from interlace.studio.records import RecordView

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["ffn-h200.json", "ffn-models-h200.json"])
def test_rows_are_those_of_the_record(name: str) -> None:
    data = json.loads((RESULTS / name).read_text())
    shown = RecordView.read((RESULTS / name).read_text()).shown()
    assert shown["command"] == data["command"]
    assert len(shown["rows"]) == len(data["rows"])
    for row, found in zip(data["rows"], shown["rows"], strict=True):
        assert (found["series"], found["size"], found["target"]) == (row["preset"], row["size"], row["target"])
        assert found["ratio"] == pytest.approx(row["ratio"])
        assert found["limit"] == pytest.approx(row["libraries"][row["library"]]["median_us"] / row["floor_us"])


def changed(**members: Any) -> str:
    data = json.loads((RESULTS / "ffn-h200.json").read_text())
    data["rows"][0].update(members)
    return json.dumps(data)


def test_a_row_without_a_preset_is_named_by_its_workload() -> None:
    assert RecordView.read(changed(preset=None)).rows[0].series == "hidden 4096, ffn 14336, activation relu, dtype bf16"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "WORKLOAD --out` \\("),
        ("nonsense", "Expecting value"),
        ((RESULTS / "sync-h200.json").read_text(), "but of `interlace bench sync` \\(it has no 'rows'\\)"),
        (changed(size=0), "size is 0"),
        (changed(floor_us=0), "0 is no positive number"),
        (changed(executor="other"), "it has no 'other'"),
        (changed(size=True), "size is True"),
    ],
)
def test_other_files_are_refused(text: str, why: str) -> None:
    with pytest.raises(StudioError, match=f"not a record of `interlace bench.*{why}"):
        RecordView.read(text)
