"""Records in the studio: speedups and their limits are those of the rows, and other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlace.core.errors import StudioError
from interlace.studio.records import CounterRow, Record, RecordView

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["ffn-h200.json", "ffn-models-h200.json"])
def test_rows_are_those_of_the_record(name: str) -> None:
    data = json.loads((RESULTS / name).read_text())
    (shown,) = RecordView.read((RESULTS / name).read_text()).to_data()["records"]
    assert shown["title"] == f"ffn on {data['gpu']}, {data['date']}"
    assert shown["command"] == data["command"]
    assert len(shown["rows"]) == len(data["rows"])
    for row, found in zip(data["rows"], shown["rows"], strict=True):
        assert (found["series"], found["size"], found["target"]) == (row["preset"], row["size"], row["target"])
        assert found["ratio"] == pytest.approx(row["ratio"])
        assert found["limit"] == pytest.approx(row["libraries"][row["library"]]["median_us"] / row["floor_us"])


def test_decode_steps_are_rows_by_batch() -> None:
    data = json.loads((RESULTS / "decode-h200.json").read_text())
    record = Record.read((RESULTS / "decode-h200.json").read_text())
    for row, found in zip(data["rows"], record.rows, strict=True):
        assert (found.series, found.size) == (f"{row['model']}, context {row['context']}", row["batch"])
        assert found.library_us == min(timed["median_us"] for timed in row["libraries"].values())
        assert found.executor_us == min(timed["median_us"] for timed in row["executors"].values())


def test_bytes_and_hits_are_those_that_counters_saw() -> None:
    data = json.loads((RESULTS / "traffic-h200.json").read_text())
    record = Record.read((RESULTS / "traffic-h200.json").read_text())
    assert not record.rows
    for row, found in zip(data["rows"], record.counted, strict=True):
        assert found.read_bytes == row["dram_read_bytes"]
        assert (found.hit_rate, found.us) == (pytest.approx(row["l2_hit_pct"] / 100), row["ns"] / 1000)
        assert found.series.split(", ") == [told for told in (row["name"], row["tile"], row["order"]) if told]


def make_profile(**figures: Any) -> str:
    """Return what ``interlace profile ffn --json`` writes for one size."""
    rates = {"memory_share": 0.5, "compute_share": 0.1, "bytes_per_s": 1.0, "flops_per_s": 1.0}
    seen = {"dram_read_bytes": 2e8, "dram_write_bytes": 1e6, "l2_hit_rate": 0.25, "us": 60.0, **rates}
    seen |= {"verdict": "memory"}
    workload = {"name": "ffn", "hidden": 4096, "m": 16, "gated": False, "dtype": "bf16"}
    row = {"size": 16, "workload": workload, "executor": "one_launch", "setting": {}, "flops": 1e9}
    row |= {"counted": seen | figures, "predicted": {**seen, "dram_read_bytes": 1.9e8}}
    return json.dumps({"gpu": "NVIDIA H200", "date": "2026-11-22", "versions": {}, "sweep": "m", "rows": [row]})


def test_a_profile_says_what_was_predicted_and_what_limits() -> None:
    record = Record.read(make_profile())
    what = "ffn, hidden 4096, dtype bf16, one_launch"
    assert record.counted == (CounterRow(what, "m 16", 60.0, 2e8, 1e6, 0.25, 1.9e8, "memory"),)
    assert (record.title, record.command) == ("ffn on NVIDIA H200, 2026-11-22", "")
    for name, value in {"l2_hit_rate": 1.5, "us": 0, "dram_read_bytes": "x"}.items():
        with pytest.raises(StudioError, match="not a record"):
            Record.read(make_profile(**{name: value}))


def test_records_of_several_files_stand_side_by_side() -> None:
    texts = [(RESULTS / name).read_text() for name in ("ffn-h200.json", "ffn-models-h200.json")]
    shown = RecordView.read(*texts).to_data()["records"]
    assert [len(record["rows"]) for record in shown] == [len(json.loads(text)["rows"]) for text in texts]


def change_record(**members: Any) -> str:
    data = json.loads((RESULTS / "ffn-h200.json").read_text())
    data["rows"][0].update(members)
    return json.dumps(data)


def test_a_row_without_a_preset_is_named_by_its_workload() -> None:
    assert (
        Record.read(change_record(preset=None)).rows[0].series == "hidden 4096, ffn 14336, activation relu, dtype bf16"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "profile --json` \\("),
        ("nonsense", "Expecting value"),
        ((RESULTS / "sync-h200.json").read_text(), "but of `interlace bench sync` \\(it has no 'rows'\\)"),
        (change_record(size=0), "size is 0"),
        (change_record(floor_us=0), "0 is no positive number"),
        (change_record(executor="other"), "it has no 'other'"),
        (change_record(size=True), "size is True"),
        (change_record(floor_us=1e-300), "1e-300 is no positive number"),
        (change_record(floor_us=10**400), "int too large"),
    ],
)
def test_other_files_are_refused(text: str, why: str) -> None:
    with pytest.raises(StudioError, match=f"not a record of `interlace bench.*{why}"):
        RecordView.read(text)
