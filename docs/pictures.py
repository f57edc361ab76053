"""Pictures of the studio for the pages, made anew by `make pictures`; it needs a Chromium of the system."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import interlace as il
from interlace.studio.plan_view import PlanView
from interlace.studio.server import listen, made

HERE = Path(__file__).parent


def played(page: Page) -> None:
    """Serpentine beside row by row, to the end."""
    page.select_option("#preset", "Serpentine beside row by row")
    page.get_by_text("2 / 16").wait_for()
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


def main() -> None:
    graph = il.workloads.two_matmuls(1024, 1024, 2048, 1024)
    view = PlanView.of(il.build(graph, il.Choices(132, policy=il.RowSync())))
    with listen(0) as listening, sync_playwright() as playwright:
        server = made(listening, view)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        for name, path, act in (
            ("studio", "", played),
            ("studio-chain", "chain.html", chained),
            ("studio-plan", "plan.html", planned),
        ):
            page = chromium.new_page(viewport={"width": 1280, "height": 600})
            page.goto(address + path)
            page.wait_for_selector("html[data-busy=false]", state="attached")
            act(page)
            page.wait_for_timeout(300)  # the last picture is drawn
            page.screenshot(path=HERE / f"{name}.png", full_page=True)
        chromium.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
