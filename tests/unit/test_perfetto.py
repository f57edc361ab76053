"""The Perfetto file of hand-made traces: slices, tracks, arrows."""

import numpy as np
import pytest

from interlace.trace.events import Trace
from interlace.trace.perfetto import to_perfetto


def trace(rows: list[tuple[int, int, int, int, int, int, int]], clock: str = "globaltimer") -> Trace:
    """Rows are (op, tile, worker, sm, wait, start, end)."""
    columns = [np.array(c, np.int64) for c in zip(*rows, strict=True)] if rows else [np.zeros(0, np.int64)] * 7
    return Trace(*columns, ("up", "down"), clock)


# Two workers on two SMs; the second item of worker 1 waits 500 ns for item 0.
CHAIN = [
    (0, 0, 0, 3, 10_000, 10_000, 12_000),
    (0, 1, 1, 5, 10_000, 10_250, 11_000),
    (1, 4, 1, 5, 11_500, 12_000, 13_000),
]


def events(data: dict, ph: str) -> list[dict]:
    return [e for e in data["traceEvents"] if e["ph"] == ph]


def track_names(data: dict) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events(data, "M") if e["name"] == "thread_name"}


def test_waits_and_work_are_separate_slices_in_microseconds() -> None:
    slices = events(to_perfetto(trace(CHAIN), grids=[(1, 2), (2, 3)]), "X")
    assert [(s["name"], s["cat"], s["ts"], s["dur"]) for s in slices] == [
        ("up", "work", 0.0, 2.0),
        ("wait up", "wait", 0.0, 0.25),
        ("up", "work", 0.25, 0.75),
        ("wait down", "wait", 1.5, 0.5),
        ("down", "work", 2.0, 1.0),
    ]
    assert slices[-1]["args"] == {"op": "down", "tile": [1, 1], "item": 2, "worker": 1, "sm": 5}
    colours = {s["cat"]: {t["cname"] for t in slices if t["cat"] == s["cat"]} for s in slices}
    assert colours["wait"].isdisjoint(colours["work"])


def test_an_item_that_was_stolen_tells_from_whom() -> None:
    slices = events(to_perfetto(trace(CHAIN), steals=np.array([[2, 1, 0]])), "X")
    assert [s["args"].get("stolen from worker") for s in slices] == [None, None, None, 0, 0]


def test_tiles_are_numbers_where_grids_are_unknown() -> None:
    assert events(to_perfetto(trace(CHAIN)), "X")[-1]["args"]["tile"] == 4


def test_a_worker_that_has_its_sm_to_itself_is_named_after_the_sm() -> None:
    data = to_perfetto(trace(CHAIN), name="GPU")
    assert track_names(data) == {0: "SM 3", 1: "SM 5"}
    assert events(data, "M")[0]["args"]["name"] == "GPU (clock: globaltimer)"
    assert [s["tid"] for s in events(data, "X")] == [0, 1, 1, 1, 1]


def test_workers_that_share_an_sm_are_tracks_under_it() -> None:
    rows = [(0, i, worker, sm, 0, 0, 10) for i, (worker, sm) in enumerate([(140, 12), (8, 12), (3, 2)])]
    data = to_perfetto(trace(rows))
    assert track_names(data) == {0: "SM 2", 1: "SM 12 · worker 8", 2: "SM 12 · worker 140"}
    order = [(e["args"]["sort_index"], e["tid"]) for e in events(data, "M") if e["name"] == "thread_sort_index"]
    assert order == [(0, 0), (1, 1), (2, 2)]


def test_blocks_that_come_and_go_fill_lanes_of_their_sm() -> None:
    # Block numbers repeat from launch to launch: 0 runs on SM 1 and then on SM 2.
    rows = [
        (0, 0, 0, 1, 0, 0, 10),
        (0, 1, 1, 1, 5, 5, 20),
        (1, 0, 0, 2, 10, 10, 30),
        (1, 1, 1, 1, 12, 12, 18),
    ]
    data = to_perfetto(trace(rows))
    assert track_names(data) == {0: "SM 1 · lane 0", 1: "SM 1 · lane 1", 2: "SM 2"}
    assert [s["tid"] for s in events(data, "X")] == [0, 1, 2, 0]
    by_track: dict[int, float] = {}
    for s in sorted(events(data, "X"), key=lambda s: s["ts"]):
        assert s["ts"] >= by_track.get(s["tid"], 0.0), "slices of one track overlap"
        by_track[s["tid"]] = s["ts"] + s["dur"]


def test_an_arrow_leads_from_inside_the_producer_to_inside_the_consumer() -> None:
    data = to_perfetto(trace(CHAIN), arrows=np.array([[0, 2]]))
    (start,), (finish,) = events(data, "s"), events(data, "f")
    assert start["id"] == finish["id"]
    assert (start["tid"], finish["tid"], finish["bp"]) == (0, 1, "e")
    assert 0.0 < start["ts"] < 2.0
    assert 2.0 <= finish["ts"] < 3.0


@pytest.mark.parametrize(("start", "end"), [(11_000, 13_000), (11_999, 13_000), (10_500, 11_200)])
def test_an_arrow_never_points_back_in_time(start: int, end: int) -> None:
    # A wait inside the reduction starts before its producer ends; a post is seen before its end is noted.
    rows = [(0, 0, 0, 0, 10_000, 10_000, 12_000), (1, 0, 1, 1, 10_500, start, end)]
    data = to_perfetto(trace(rows), arrows=np.array([[0, 1]]))
    (leave,), (arrive,) = events(data, "s"), events(data, "f")
    assert 0.0 <= leave["ts"] <= arrive["ts"]
    assert (start - 10_000) / 1e3 <= arrive["ts"] <= (end - 10_000) / 1e3


def test_a_clock_of_steps_shows_a_step_as_a_microsecond_and_says_so() -> None:
    data = to_perfetto(trace([(0, 0, 0, 0, 4, 6, 9)], clock="steps"))
    assert [(s["ts"], s["dur"]) for s in events(data, "X")] == [(0.0, 2.0), (2.0, 3.0)]
    assert "one step shown as 1 us" in events(data, "M")[0]["args"]["name"]
    assert data["otherData"] == {"clock": "steps"}


def test_an_empty_trace_is_a_valid_file() -> None:
    assert [e["name"] for e in to_perfetto(trace([]))["traceEvents"]] == ["process_name"]
