"""Pages of the studio as notebook widgets, in a browser with a stand-in for the notebook's channel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("anywidget")

import interlace as il
from interlace.core.errors import StudioError
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads
from interlace.planner.predict import predict
from interlace.studio.chain import Chain
from interlace.studio.game import GameOptions

# As a notebook does it: the widget's module is given a model, and messages go both ways.
NOTEBOOK = """async ([module, state]) => {
  const address = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  let hear = () => {};
  const model = {
    get: (name) => state[name],
    on: (_, heard) => { hear = heard; },
    send: async (message) => { for (const answer of await window.python(message)) hear(answer); },
  };
  (await import(address)).default.render({ model, el: document.body });
}"""


@pytest.fixture
def notebook(browser: Any) -> Iterator[Callable[[Any], Any]]:
    """Shows something, and returns the frame that the widget makes."""
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.extend([request.url] * request.url.startswith("http")))

    def show(what: Any) -> Any:
        widget = il.studio.show(what)
        answers: list[dict[str, Any]] = []
        widget.send = lambda content: answers.append(content)

        def python(message: dict[str, Any]) -> list[dict[str, Any]]:
            answers.clear()
            widget.handle_message(widget, message, [])
            while not message.get("cancel") and not (answers and answers[-1]["last"]):
                time.sleep(0.01)  # a search has a thread of its own
            return list(answers)

        page.expose_function("python", python)
        state = {name: getattr(widget, name) for name in ("page", "link", "height")}
        page.evaluate(NOTEBOOK, [widget._esm, state])
        page.wait_for_selector("iframe")
        frame = page.frames[-1]
        frame.wait_for_selector("html[data-busy=false]", state="attached")
        return frame

    yield show
    assert said == []
    page.close()


def test_a_grid_is_played_in_a_notebook_and_hints_come_as_they_are_found(notebook: Callable[[Any], Any]) -> None:
    frame = notebook(PanelGrid(3, 3))
    assert frame.locator(".tile").count() == 9
    for tile in (0, 1, 2):
        frame.click(f'[data-tile="{tile}"]')
    frame.wait_for_selector("html[data-busy=false]", state="attached")
    frame.click('[data-tile="5"]')
    frame.get_by_text("4 / 9").wait_for()
    frame.wait_for_selector("html[data-busy=false]", state="attached")
    path = (Visit(0, 0), Visit(0, 1), Visit(0, 2), Visit(1, 2))
    rest = tuple(Visit(row, column) for row in range(3) for column in range(3) if Visit(row, column) not in path)
    whole = count_loads(PanelGrid(3, 3), path + rest, 5, EvictionPolicy.LRU)
    assert int(frame.locator("#loads").inner_text()) == 5 <= whole
    frame.click("#least")
    frame.get_by_text("proved").wait_for()
    assert frame.locator("#copy").is_hidden()
    assert frame.locator("nav a").count() == 0


def test_plans_and_chains_and_traces_are_shown_in_a_notebook(notebook: Callable[[Any], Any]) -> None:
    tile = il.MatmulTile(16, 16, 16)
    plan = il.build(il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Schedule(3))
    frame = notebook(il.verify(plan))
    assert frame.locator("#proof").inner_text() == f"Proved: {il.verify(plan)}."
    frame.locator("#next").click()
    frame.get_by_text("op 'first', tile (0, 1)").first.wait_for()
    trace = il.studio.show(predict(plan, il.H200).trace)
    found = trace._answers["timeline"]({})["timelines"][0]
    assert found["span_ns"] == predict(plan, il.H200).trace.span_ns
    chain = il.studio.show(Chain(3, 2, 2, 3, 6))
    assert chain._answers["chain/open"]({"link": chain.link})["options"]["rows"] == 3
    assert il.studio.show(GameOptions(capacity=3)).link


def test_what_makes_no_sense_is_told_to_the_page_and_to_who_shows_it() -> None:
    widget = il.studio.show(PanelGrid(2, 2))
    sent: list[dict[str, Any]] = []
    widget.send = sent.append
    for name, data in (("position", {"path": [99]}), ("nonsense", {}), ("least", {"options": {"m": 0}}), ("open", 3)):
        widget.handle_message(widget, {"id": 7, "name": name, "data": data}, [])
        while not sent:
            time.sleep(0.01)
        message = sent.pop()
        assert (message["id"], message["last"], type(message["error"])) == (7, True, str)
        json.dumps(message)
    with pytest.raises(StudioError, match="int is nothing that the studio shows"):
        il.studio.show(3)  # type: ignore[arg-type]
