"""Traces in the studio: what a file says of each item, hand-offs and tails, and files that are none."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import StudioError
from interlace.planner.predict import predict
from interlace.studio import timeline
from interlace.studio.timeline import Timeline, TimelineView
from interlace.studio.wire import encode_json
from interlace.trace.events import Trace
from interlace.trace.perfetto import to_perfetto
from interlace.trace.summary import Summary
from interlace.workloads import two_matmuls


def by_hand(clock: str = "ns") -> Trace:
    """Worker 0 runs up 0 and, without a wait, down 0; worker 1 runs up 1, waits from 90 to 130, and runs down 1."""
    op, tile = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    wait, start, end = np.array([0, 0, 120, 90]), np.array([0, 0, 120, 130]), np.array([120, 90, 200, 180])
    return Trace(op, tile, tile.copy(), tile.copy(), wait, start, end, ("up", "down"), clock)


def write_trace(trace: Trace) -> dict[str, Any]:
    """Its file: down 0 has waited for both tiles of up, down 1 for the first."""
    return to_perfetto(trace, grids=[(2, 1), (1, 2)], arrows=np.array([[1, 2], [0, 2], [0, 3]]), name="by hand")


def test_a_file_tells_items_hand_overs_tails_and_where_the_time_went() -> None:
    shown = Timeline.read(json.dumps(write_trace(by_hand()))).to_data()
    assert shown["title"] == "by hand (clock: ns)"
    assert (shown["unit"], shown["span_ns"], shown["lanes"]) == ("us", 200, ["SM 0", "SM 1"])
    assert (shown["op"], shown["worker"]) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert shown["tile"] == ["(0, 0)", "(1, 0)", "(0, 0)", "(0, 1)"]
    assert (shown["wait"], shown["start"], shown["end"]) == ([0, 0, 120, 90], [0, 0, 120, 130], [120, 90, 200, 180])
    assert shown["after"] == [-1, -1, 0, 0]
    summary = shown["summary"]
    assert summary["handed"] == {"count": 1, "median": 10.0}
    assert (summary["busy"], summary["waiting"]) == (pytest.approx(340 / 400), pytest.approx(40 / 400))
    assert [(op["op"], op["waves"], op["tail_from"], op["end"], op["waiting_ns"]) for op in summary["ops"]] == [
        ("up", 1.0, 0, 120, 0),
        ("down", 1.0, 120, 200, 40),
    ]


def test_a_clock_of_steps_is_shown_in_thousandths() -> None:
    shown = Timeline.read(json.dumps(write_trace(by_hand("steps")))).to_data()
    assert (shown["unit"], shown["span_ns"], shown["end"][0]) == ("steps", 200_000, 120_000)


def test_a_plan_simulated_is_the_same_after_a_round_trip() -> None:
    tile = il.MatmulTile(16, 16, 16)
    trace = predict(il.build(two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Schedule(3)), il.H200).trace
    read = Timeline.read(json.dumps(to_perfetto(trace)))
    assert read.trace.ops == trace.ops
    for name in ("op", "worker", "sm", "wait_ns", "start_ns", "end_ns"):
        moved = trace.wait_ns.min() if name.endswith("_ns") else 0
        np.testing.assert_array_equal(getattr(read.trace, name), getattr(trace, name) - moved)
    assert Summary.from_trace(read.trace, 3) == Summary.from_trace(trace, 3)


def test_blocks_that_come_and_go_are_on_lanes_of_their_sm() -> None:
    trace = by_hand()
    trace.worker[:], trace.sm[:] = 0, 7
    read = Timeline.read(json.dumps(to_perfetto(trace)))
    assert read.lanes == ("SM 7 \N{MIDDLE DOT} lane 0", "SM 7 \N{MIDDLE DOT} lane 1")
    assert read.trace.worker.tolist() == [0, 1, 0, 1]


def break_trace(change: str) -> str:
    data = write_trace(by_hand())
    work = next(event for event in data["traceEvents"] if event.get("cat") == "work")
    flow = next(event for event in data["traceEvents"] if event["ph"] == "f")
    changes: dict[str, Any] = {
        "item twice": lambda: work["args"].update(item=1),
        "no time": lambda: work.update(ts=float("nan")),
        "huge time": lambda: work.update(ts=1e300),
        "before": lambda: work.update(dur=-5),
        "text": lambda: work.update(ts="0"),
        "no item": lambda: flow["args"].update(item=4),
        "no producer": lambda: flow.update(id=99),
        "no clock": lambda: data.pop("otherData"),
        "no list": lambda: data.update(traceEvents=7),
        "no event": lambda: data["traceEvents"].append(7),
        "no items": lambda: data.update(traceEvents=[]),
    }
    changes[change]()
    return json.dumps(data)


ITEMS = ("item twice", "no time", "huge time", "before", "text", "no item", "no producer")


@pytest.mark.parametrize("change", [*ITEMS, "no clock", "no list", "no event"])
def test_a_file_that_is_no_trace_is_refused(change: str) -> None:
    with pytest.raises(StudioError, match="not a trace that `interlace trace` wrote"):
        Timeline.read(break_trace(change))


def test_no_items_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudioError, match="a trace of 0 items"):
        Timeline.read(break_trace("no items"))
    monkeypatch.setattr(timeline, "MAX_ITEMS", 3)
    with pytest.raises(StudioError, match="a trace of 4 items; the page draws 1 to 3; use larger tiles"):
        Timeline.read(json.dumps(write_trace(by_hand())))


def test_steps_and_time_have_no_axis_in_common() -> None:
    one, other = (Timeline.read(json.dumps(write_trace(by_hand(clock)))) for clock in ("steps", "ns"))
    with pytest.raises(StudioError, match="traces by the clocks ns, steps; steps have no length, open them"):
        TimelineView((one, other))
    assert len(TimelineView((other, other)).to_data()["timelines"]) == 2


def test_a_trace_without_the_name_of_its_process_is_shown() -> None:
    data = write_trace(by_hand())
    data["traceEvents"] = [event for event in data["traceEvents"] if event["name"] != "process_name"]
    assert Timeline.read(json.dumps(data)).to_data()["title"] == "a trace (clock: ns)"


@pytest.mark.parametrize("part", [0, 1, -1])
@pytest.mark.parametrize("member", ["name", "args", "ts", "tid", "id", "ph"])
@pytest.mark.parametrize("value", [None, [], "\ud800", 1e308, -(2**63), {"name": {}}])
def test_events_of_another_form_are_shown_or_refused(part: int, member: str, value: object) -> None:
    data = write_trace(by_hand())
    data["traceEvents"][part][member] = value
    with suppress(StudioError):
        encode_json(Timeline.read(json.dumps(data)).to_data())


def test_lone_surrogates_in_names_reach_the_page_as_replacement_letters() -> None:
    data = write_trace(replace(by_hand(), ops=("up\ud800", "\ude00\U0001f600")))
    shown = json.loads(encode_json(Timeline.read(json.dumps(data)).to_data()))
    assert shown["ops"] == [{"name": "up\ufffd"}, {"name": "\ufffd\U0001f600"}]


def test_the_server_sends_a_trace_with_lone_surrogates() -> None:
    pytest.importorskip("uvicorn")
    from ..studio_server import ask, running

    data = write_trace(replace(by_hand(), ops=("up\ud800", "down")))
    with running(TimelineView((Timeline.read(json.dumps(data)),))) as port:
        status, shown = ask(port, "timeline", {})
    assert (status, shown["timelines"][0]["ops"][0]) == (200, {"name": "up\ufffd"})
