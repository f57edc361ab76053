"""Pages of plans, traces and records in a browser: what they show, and who can use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import interlace as il
from interlace.cli.trace import find_arrows
from interlace.planner.predict import predict
from interlace.studio.plan_view import PlanView
from interlace.studio.records import Record, RecordView
from interlace.studio.timeline import Timeline, TimelineView
from interlace.trace.perfetto import to_perfetto

from ..unit.test_studio_plan import faulty
from .conftest import Page

Open = Callable[[Any], Page]


def test_a_plan_shows_lanes_grids_and_what_an_item_waits_for(open_view: Open) -> None:
    tile = il.MatmulTile(16, 16, 16)
    graph = il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile)
    plan = il.build(graph, il.Schedule(3, policy=il.RowSync()))
    page = open_view(PlanView.from_plan(plan))
    assert page.text("#proof") == f"Proved: {il.verify(plan)}."
    assert page.page.locator("#grids canvas").count() == 2
    page.page.fill("#item", str(len(plan.items) - 1))
    page.page.locator("#item").blur()
    page.wait_until_idle()
    assert page.text("#detail .name") == "op 'second', tile (3, 2)"
    tensors = page.page.locator("#detail .tensors figcaption").all_inner_texts()
    assert tensors == ["y 64 × 32, read", "b 48 × 32, read", "out 64 × 48, written"]
    drawn = page.page.locator("#detail .tensors .written").bounding_box()
    assert drawn is not None
    assert (round(drawn["width"]), round(drawn["height"])) == (17, 17)  # a third of 48, a quarter of 64, and a stroke
    posting = page.page.locator("#detail li").all_inner_texts()
    assert posting == ["op 'first', tile (3, 0)", "op 'first', tile (3, 1)"]
    page.page.click("text=op 'first', tile (3, 1)")
    page.wait_until_idle()
    assert page.text("#detail .name") == "op 'first', tile (3, 1)"
    page.press("n", "b", "+", "0")
    assert page.page.locator("#item").input_value() == "7"
    page.page.select_option("#colours", "worker")
    page.page.select_option("#op", "1")
    lane = page.page.locator("#lanes").bounding_box()
    assert lane is not None
    page.page.mouse.click(lane["x"] + 4, lane["y"] + 24)  # the first item of the first worker
    page.wait_until_idle()
    assert page.text("#detail .name") == "op 'first', tile (0, 0)"
    page.usable()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("CoverageError", "nothing makes it wait for:"),
        ("ThresholdError", "posted by:"),
        ("DeadlockError", "waits for what is dispatched later:"),
        ("DeadlockError, static", ""),
        ("ItemError", "no item runs op 'second', tile number 11: it is crossed out in the grid"),
        ("ItemError, reduction", ""),
        ("SemaphoreError", ""),
        ("PlanError", ""),
        ("ItemError, outside", ""),
        ("IntraOpRaceError", "touches what is written, before it or after it, by:"),
        ("UnwrittenError", None),
    ],
)
def test_a_fault_is_framed_where_it_is(open_view: Open, kind: str, told: str | None) -> None:
    view = PlanView.from_plan(faulty()[kind])
    fault = view.to_data()["fault"]
    page = open_view(view)
    assert page.text("#proof").startswith(f"Not proved. {fault['kind']}: ")
    assert page.page.locator("#fault").is_visible() == (told is not None)
    names = [*fault["items"]["names"], *fault["producers"]["names"]]
    assert page.page.locator("#fault button").all_inner_texts() == names
    assert (told or "") in page.page.locator("#fault").inner_text()
    if names:
        assert page.text("#detail .name") == names[0]
    # In the colour of errors, frames and crosses are drawn in the grids of just the ops that are concerned.
    drawn = """() => {
      const color = getComputedStyle(document.body).getPropertyValue("--error");
      const error = color.match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
      return [...document.querySelectorAll("#grids canvas, #lanes")].map((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const hit = (at) => data[at + 3] === 255 && error.every((part, i) => data[at + i] === part);
        return Array.from({ length: data.length / 4 }, (_, pixel) => 4 * pixel).some(hit);
      });
    }"""
    page.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    lanes, *grids = page.page.evaluate(drawn)
    concerned = {view.plan.items.op[item] for item in fault["items"]["items"] + fault["producers"]["items"]}
    concerned |= {fault["tile"][0]} if fault["tile"] else set()
    assert lanes == bool(names and view.trace is not None)
    assert grids == [op in concerned for op in range(len(view.plan.graph.ops))]


def test_without_a_plan_the_page_says_how_to_begin_with_one(browser: Any, address: str) -> None:
    page = Page(browser, f"{address}plan.html")
    assert "interlace studio plan.json" in page.text("#about")
    assert page.page.locator("#lanes").is_hidden()
    page.close()


def test_two_traces_share_an_axis_and_say_who_handed_over_to_whom(open_view: Open) -> None:
    tile = il.MatmulTile(16, 16, 16)
    plan = il.build(il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Schedule(3))
    trace = predict(plan, il.H200).trace
    data = to_perfetto(trace, grids=[op.grid for op in plan.graph.ops], arrows=find_arrows(plan, trace))
    timeline = Timeline.read(json.dumps(data))
    page = open_view(TimelineView((timeline, timeline)))
    assert page.page.locator("canvas.lanes").count() == 2
    assert page.text("#detail .name") == "first, tile (0, 0)"
    busy = timeline.to_data()["summary"]["busy"]
    assert f"{100 * busy:.1f} %" in page.text("#summaries .counters >> nth=0")
    last = len(plan.items) - 1
    page.page.fill("#item", str(last))
    page.page.locator("#item").blur()
    assert page.text("#detail .name") == "second, tile (3, 2)"
    giver = timeline.producers[last]
    assert page.page.locator("#detail li").all_inner_texts() == [f"first, tile {timeline.tiles[giver]}"]
    page.page.click("#detail li button")
    assert page.page.locator("#item").input_value() == str(giver)
    assert "handed over to" in page.text("#detail")
    page.page.fill("#op", "sec")
    assert page.text("#found") == "24 items found"
    page.page.locator("#op").blur()
    page.press("n")
    assert page.text("#detail .name") == "second, tile (0, 0)"
    page.page.check("#arrows")
    page.press("+", "0")
    lane = page.page.locator("canvas.lanes >> nth=1").bounding_box()
    assert lane is not None
    page.page.mouse.click(lane["x"] + 4, lane["y"] + 24)  # the first item of the first worker
    assert page.text("#detail .name") == "first, tile (0, 0)"
    page.usable()


def test_records_of_several_files_are_told_apart_and_what_counters_saw_stands_below(open_view: Open) -> None:
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    texts = [(results / f"{name}-h200.json").read_text() for name in ("ffn", "ffn-models", "traffic")]
    other = texts[0].replace('"NVIDIA H200"', '"NVIDIA H100"', 1)
    read = map(Record.read, (*texts, other))
    view = RecordView(tuple(replace(r, rows=r.rows[:9], counted=r.counted[:3]) for r in read))
    rows = [len(record.rows) for record in view.records]
    page = open_view(view)
    assert page.text("#plot-title") == "4 records"
    marks, counted = page.page.locator("#plot title"), page.page.locator("#counted tbody tr")
    assert (marks.count(), counted.count()) == (sum(rows), len(view.records[2].counted))
    first = view.records[2].counted[0]
    assert f"{100 * first.hit_rate:.1f} %" in counted.first.inner_text()
    boxes = page.page.locator("#files input")
    boxes.nth(1).uncheck()
    assert marks.count() == rows[0] + rows[3]
    assert "NVIDIA H100" in page.text("#rows tbody tr >> nth=-1")
    page.press("/")
    page.page.keyboard.type("relu")
    assert marks.count() == 2 * sum("relu" in row.series for row in view.records[0].rows)
    boxes.nth(2).uncheck()
    assert counted.count() == 0
    boxes.nth(2).check()
    page.page.fill("#search", "")
    page.usable()


def test_a_record_is_a_plot_and_a_table_of_the_same_rows(open_view: Open) -> None:
    record = (Path(__file__).parents[2] / "benchmarks" / "results" / "ffn-h200.json").read_text()
    rows = json.loads(record)["rows"]
    page = open_view(RecordView.read(record))
    page.page.locator("#plot svg").wait_for()
    assert page.page.locator("#plot title").count() == len(rows)
    told = [line.split("\t") for line in page.text("#rows tbody").splitlines()]
    assert [(cells[0], cells[1], cells[7]) for cells in told] == [
        (row["preset"], f"{row['size']:,}", f"{row['ratio']:.3f}") for row in rows
    ]
    page.usable()


@pytest.mark.parametrize("name", ["trace", "records"])
def test_without_a_file_pages_say_how_to_begin_with_one(browser: Any, address: str, name: str) -> None:
    page = Page(browser, f"{address}{name}.html")
    assert "begin with it: interlace " in page.text("#about")
    page.close()


def test_tens_of_thousands_of_items_are_drawn_as_pixels_and_not_one_by_one(open_view: Open) -> None:
    """The time of a frame is not asserted: it is that of so many calls, and of so many pixels."""
    tile = il.MatmulTile(16, 16, 64)
    graph = il.workloads.two_matmuls(2048, 64, 4096, 4096, first=tile, second=tile)
    plan = il.build(graph, il.Schedule(132))
    count = len(plan.items)
    assert count == 65536
    turn, worker = np.divmod(np.arange(count), 132)
    times = 1000 * turn + np.arange(3)[:, None] * 300  # each waits 300 ns, works as long, and rests
    trace = il.Trace(plan.items.op, plan.items.tile, worker, worker, *times, ("first", "second"), "predicted")
    page = open_view(PlanView(plan, il.H200, "", None, trace))
    page.page.evaluate(
        "() => { window.drawn = 0; for (const call of ['fillRect', 'strokeRect', 'fillText', 'lineTo']) {"
        "const of = CanvasRenderingContext2D.prototype, was = of[call];"
        "of[call] = function (...all) { window.drawn += 1; return was.apply(this, all); }; } }"
    )
    frame = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(window.drawn))))"
    page.press("+")
    assert 0 < page.page.evaluate(frame) < 100
    page.page.fill("#item", "50000")
    page.page.locator("#item").blur()
    page.wait_until_idle()
    assert page.text("#detail .name") == "op 'second', tile (67, 80)"
    page.press("0", *"+++++++")  # now a 128th of the time around its middle, which is in turn 248
    assert page.page.evaluate(frame) < 3000
    middle, part = 496_600 / 2, 496_600 / 2**7
    pixels = """(at) => {
      const { width, height } = document.getElementById("lanes");
      const { data } = document.getElementById("lanes").getContext("2d").getImageData(0, 0, width, height);
      return at.map(([x, y]) => [...data.slice(4 * (Math.floor(y) * width + Math.floor(x * width)))].slice(0, 4));
    }"""
    ways = [(time, lane) for lane in (5, 100) for time in (248_150, 248_450, 248_800)]
    at = [((time - middle) / part + 0.5, 18 + (lane + 0.5) * 420 / 132) for time, lane in ways]
    first, second = (0, 114, 178), (230, 159, 0)  # lane 5 ends the first op in this turn, lane 100 begins the second
    expected = [(*first, 89), (*first, 255), (0, 0, 0, 0), (*second, 89), (*second, 255), (0, 0, 0, 0)]
    for found, color in zip(page.page.evaluate(pixels, at), expected, strict=True):
        assert found == pytest.approx(color, abs=2)
