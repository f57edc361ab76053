"""Every page of the studio without a mouse: what Tab reaches, and the keys of its sheet."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import interlace as il
from interlace.planner.predict import predict
from interlace.studio.chain import Chain, play
from interlace.studio.plan_view import PlanView
from interlace.studio.records import RecordView
from interlace.studio.timeline import Timeline, TimelineView
from interlace.trace.perfetto import to_perfetto

from ..unit.test_studio_records import RESULTS
from .conftest import Page

Open = Callable[[Any], Page]


def build_small_plan() -> il.Plan:
    tile = il.MatmulTile(16, 16, 16)
    return il.build(il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Schedule(3))


def tab_to(page: Page, selector: str) -> None:
    """Move the focus by Tab alone; assert that what has the focus shows it."""
    for _ in range(60):
        page.page.keyboard.press("Tab")
        if page.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            style = "() => getComputedStyle(document.activeElement).outlineStyle"
            assert selector == ".tile" or page.page.evaluate(style) != "none"
            return
    raise AssertionError(f"Tab does not reach {selector}")


def sheet(page: Page) -> None:
    """The sheet of keys opens, lists its own key, and closes."""
    page.press("Shift+?")
    assert page.page.locator("#help").is_visible()
    assert "this sheet" in page.text("#help")
    page.press("Escape")
    assert page.page.locator("#help").is_hidden()


def picture(page: Page, selector: str) -> str:
    """Return what a canvas shows once it is drawn."""
    page.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    drawn: str = page.page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector)
    return drawn


def zooms(page: Page, selector: str) -> None:
    """Zoom, move along time, and see the whole again, from the canvas that has the focus."""
    whole = picture(page, selector)
    page.press("+", "+")
    near = picture(page, selector)
    page.press("ArrowRight")
    assert len({whole, near, picture(page, selector)}) == 3
    page.press("ArrowLeft")
    assert picture(page, selector) == near
    page.press("0")
    assert picture(page, selector) == whole


def test_two_products_are_played_by_keys(browser: Any, address: str) -> None:
    page = Page(browser, f"{address}chain.html")
    sheet(page)
    tab_to(page, ".tile")
    page.press("Space", *("ArrowRight", "Space") * 3, "ArrowRight", "Enter")
    position = play(Chain(), (0, 1, 2, 3, 16))
    assert page.numbers() == (5, sum(position.loads.values()), position.hits)
    page.press("ArrowDown", "Space")  # it is locked
    assert page.text("#missing").startswith("Locked: 4 tiles")
    page.press("u", "u", "Home", "End", "r")
    assert page.numbers()[0] == 5
    tab_to(page, "#undo")
    page.press("Enter")
    assert page.numbers()[0] == 4
    tab_to(page, "#step")
    page.press("ArrowLeft")
    assert page.numbers()[0] == 3
    page.close()


def test_a_plan_is_read_by_keys(open_view: Open) -> None:
    page = open_view(PlanView.from_plan(build_small_plan()))
    sheet(page)
    tab_to(page, "#op")
    page.page.keyboard.type("second")
    tab_to(page, "#tile")
    some = picture(page, "#grids figure:nth-of-type(2) canvas")
    page.page.keyboard.type("4")
    assert picture(page, "#grids figure:nth-of-type(2) canvas") != some
    page.press("Backspace")
    assert picture(page, "#grids figure:nth-of-type(2) canvas") == some
    tab_to(page, "#lanes")
    zooms(page, "#lanes")
    page.press("n", "n", "b")
    assert page.text("#detail .name") == "op 'first', tile (0, 1)"
    tab_to(page, "#item")
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("19")
    page.press("Enter")
    page.page.get_by_text("op 'second', tile (3, 2)").first.wait_for()
    tab_to(page, "#detail li button")
    page.press("Enter")
    assert page.text("#detail .name") == "op 'first', tile (3, 0)"


def test_of_items_that_are_asked_for_one_after_another_the_last_is_shown(open_view: Open) -> None:
    page, held = open_view(PlanView.from_plan(build_small_plan())), []
    page.page.route("**/api/plan/item", lambda route: held.append(route))
    for key in "nnb":
        page.page.keyboard.press(key)
    page.page.wait_for_function("() => document.querySelector('#item').value === '1'")
    while len(held) < 3:
        page.page.wait_for_timeout(10)
    for route in held[:2]:
        with page.page.expect_response("**/api/plan/item") as answer:
            route.continue_()
        answer.value.finished()
        assert page.page.evaluate("() => document.documentElement.dataset.busy") == "true"
        assert page.text("#detail .name") == "op 'first', tile (0, 0)"
    held[2].continue_()
    page.wait_until_idle()
    assert page.text("#detail .name") == "op 'first', tile (0, 1)"


def test_a_trace_is_read_by_keys(open_view: Open) -> None:
    plan = build_small_plan()
    data = to_perfetto(predict(plan, il.H200).trace, grids=[op.grid for op in plan.graph.ops])
    page = open_view(TimelineView((Timeline.read(json.dumps(data)),)))
    sheet(page)
    tab_to(page, "#op")
    page.page.keyboard.type("sec")
    assert page.text("#found") == "12 items found"
    tab_to(page, "#arrows")
    page.press("Space")
    tab_to(page, "canvas.lanes")
    zooms(page, "canvas.lanes")
    page.press("n")
    assert page.text("#detail .name") == "second, tile (0, 0)"


def test_records_are_read_by_keys(open_view: Open) -> None:
    texts = [(RESULTS / f"{name}-h200.json").read_text() for name in ("ffn", "ffn-models")]
    page = open_view(RecordView.read(*texts))
    sheet(page)
    rows = page.page.locator("#rows tbody tr")
    every = rows.count()
    tab_to(page, "#files input")
    page.press("Space")
    assert 0 < rows.count() < every
    page.press("Space", "/")
    page.page.keyboard.type("no such row")
    assert rows.count() == 0


@pytest.mark.parametrize("name", ["chain", "plan", "trace", "records"])
def test_pages_fit_a_small_screen_and_a_tablet(browser: Any, address: str, name: str) -> None:
    page = Page(browser, f"{address}{name}.html")
    for width, height in ((1280, 720), (820, 1180)):
        page.page.set_viewport_size({"width": width, "height": height})
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
