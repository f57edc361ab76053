"""Pictures of the studio for the pages, made anew by `make pictures`; it needs a Chromium of the system."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from interlace.studio.server import listen, made

HERE = Path(__file__).parent


def played(page: Page) -> None:
    """Serpentine beside row by row, to the end."""
    page.select_option("#preset", "Serpentine beside row by row")
    page.get_by_text("2 / 16").wait_for()
    page.keyboard.press("End")
    page.get_by_text("16 / 16").wait_for()
    page.get_by_text("5: 1.44 MB").wait_for()


def main() -> None:
    with listen(0) as listening, sync_playwright() as playwright:
        server = made(listening)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 700})
        page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        played(page)
        page.screenshot(path=HERE / "studio.png", full_page=True)
        chromium.close()
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
