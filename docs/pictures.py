"""Pictures of the studio for the pages, made anew by `make pictures`; it needs a Chromium of the system."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from animation import animated
from playwright.sync_api import Page, sync_playwright

import interlace as il
from interlace.cli.trace import find_arrows
from interlace.planner.predict import predict
from interlace.studio.answers import StudioView
from interlace.studio.plan_view import PlanView
from interlace.studio.records import RecordView
from interlace.studio.server import build_server, listen
from interlace.studio.timeline import Timeline, TimelineView
from interlace.trace.perfetto import to_perfetto

HERE = Path(__file__).parent


def played(page: Page) -> None:
    """Serpentine beside row by row, to the end."""
    page.select_option("#preset", "Serpentine beside row by row")
    page.locator('#step[max="16"]').wait_for()  # the order is there
    page.keyboard.press("End")
    page.get_by_text("16 / 16").wait_for()
    page.get_by_text("5: 1.44 MB").wait_for()


def chained(page: Page) -> None:
    """Panels of two rows, up to the middle, and a tile that is locked."""
    page.select_option("#speed", "60")
    page.select_option("#order", "panels of 2 rows")
    page.get_by_text("32 / 32").wait_for()
    page.locator("#step").fill("14")
    page.get_by_text("14 / 32").wait_for()
    page.click('[data-tile="24"]')
    page.get_by_text("Locked: 4 tiles").wait_for()


def planned(page: Page) -> None:
    """An item of the second op, and what it waits for."""
    page.fill("#item", "600")
    page.locator("#item").blur()
    page.get_by_text("tile (5, 8)").first.wait_for()


def timed(page: Page) -> None:
    """An item of the second op, and who handed over to it."""
    page.fill("#item", "600")
    page.locator("#item").blur()


def waved(page: Page) -> None:
    """Serpentine beside row by row in waves of eight tiles, halfway."""
    page.select_option("#preset", "Waves of 8, K in 8 chunks")
    page.locator('#step[max="64"]').wait_for()
    page.fill('[name="capacity"]', "32")
    page.locator('[name="capacity"]').blur()
    page.select_option("#ghost", "row")
    page.select_option("#speed", "60")
    page.select_option("#order", "serpentine")
    page.get_by_text("64 / 64").wait_for()
    page.locator("#step").fill("32")
    page.get_by_text("32 / 64").wait_for()
    page.wait_for_timeout(700)  # the curve follows


def locked(page: Page) -> None:
    """The first tile of a Hilbert curve on the second product, and its second, which is locked."""
    for tile in (0, 1, 2, 3, 16, 20):
        page.click(f'[data-tile="{tile}"]')
        page.wait_for_timeout(50)
    page.get_by_text("Locked: 4 tiles").wait_for()


def as_it_is(page: Page) -> None:
    """Nothing is done."""


def timeline(plan: il.Plan) -> TimelineView:
    """Predict the trace of a plan."""
    trace = predict(plan, il.H200).trace
    grids = [op.grid for op in plan.graph.ops]
    data = to_perfetto(trace, grids=grids, arrows=find_arrows(plan, trace), name="predicted, NVIDIA H200")
    return TimelineView((Timeline.read(json.dumps(data)),))


def main() -> None:
    (HERE / "game.svg").write_text(animated())
    graph = il.workloads.two_matmuls(1024, 1024, 2048, 1024)
    plan = il.build(graph, il.Schedule(132, policy=il.RowSync()))
    record = (HERE.parent / "benchmarks" / "results" / "ffn-h200.json").read_text()
    for name, path, act, view in (
        ("studio", "", played, None),
        ("studio-chain", "chain.html", chained, None),
        ("studio-waves", "", waved, None),
        ("studio-locked", "chain.html", locked, None),
        ("studio-plan", "plan.html", planned, PlanView.from_plan(plan)),
        ("studio-timeline", "trace.html", timed, timeline(plan)),
        ("studio-records", "records.html", as_it_is, RecordView.read(record)),
    ):
        take(HERE / f"{name}.png", path, act, view)


def take(out: Path, path: str, act: Callable[[Page], None], view: StudioView | None) -> None:
    """Picture of a page of the studio, after something was done on it."""
    with listen(0) as listening, sync_playwright() as playwright:
        server = build_server(listening, view)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 600})
        page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/{path}")
        page.wait_for_selector("html[data-busy=false]", state="attached")
        act(page)
        page.wait_for_timeout(300)  # the last picture is drawn
        page.screenshot(path=out, full_page=True)
        chromium.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
