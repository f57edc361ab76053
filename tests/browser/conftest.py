"""A Chromium of the system, the studio's server, and pages whose consoles must stay silent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..studio_server import running


class Page:
    """A page that is open; its console must stay silent, and where its requests are watched they go to its server."""

    def __init__(self, browser: Any, address: str, *, requests: bool = True) -> None:
        self.page = browser.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        here = "/".join(address.split("/")[:3])
        if requests:
            self.page.on("request", lambda request: self._record_request(request.url, here))
        self.page.goto(address)
        self.wait_until_idle()

    def _record_request(self, url: str, here: str) -> None:
        if not url.startswith(here):
            self.said.append(url)

    def wait_until_idle(self) -> None:
        self.page.wait_for_selector("html[data-busy=false]", state="attached")

    def follows(self, link: str) -> None:
        """Wait until the address holds a game; the page does not set it at once."""
        self.page.wait_for_url(lambda url: url.endswith(f"#{link}"))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.wait_until_idle()

    def click(self, tile: int) -> None:
        self.page.click(f'[data-tile="{tile}"]')
        self.wait_until_idle()

    def choose(self, **options: object) -> None:
        for name, value in options.items():
            field = self.page.locator(f'#setup [name="{name}"]')
            if isinstance(value, str):
                field.select_option(value)
            else:
                field.fill(str(value))
                field.blur()
            self.wait_until_idle()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def numbers(self) -> tuple[int, int, int]:
        """Steps, loads and hits, as they are shown."""
        self.wait_until_idle()
        read = "(ids) => ids.map((id) => document.getElementById(id).innerText)"
        shown = self.page.evaluate(read, ["steps", "loads", "hits"])
        steps, loads, hits = (int(text.partition("/")[0].replace(",", "")) for text in shown)
        return steps, loads, hits

    def usable(self) -> None:
        """Assert that axe finds no violation, in light and in dark."""
        from axe_playwright_python.sync_playwright import Axe

        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            found = Axe().run(self.page)
            assert found.violations_count == 0, found.generate_report()

    def close(self) -> None:
        self.page.close()
        assert self.said == []


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    with running() as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="package")
def browser(chromium: Any) -> Any:
    """Pages of one profile."""
    return _patient(chromium.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True))


@pytest.fixture(scope="package")
def axe_browser(chromium: Any) -> Any:
    """As ``browser``, for pages that axe is put into, which their own policy would not allow."""
    pytest.importorskip("axe_playwright_python")
    return _patient(chromium.new_context(viewport={"width": 1280, "height": 720}, bypass_csp=True))


def _patient(context: Any) -> Any:
    """The server compiles what it searches with, on a machine that has other things to do."""
    context.set_default_timeout(120_000)
    return context


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    page = Page(browser, address)
    yield page
    page.close()


@pytest.fixture
def open_view(axe_browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens the page of a view, on a server of its own."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def open_page(view: Any) -> Page:
            port = stack.enter_context(running(view))
            page = Page(axe_browser, f"http://127.0.0.1:{port}/{view.page}")
            stack.callback(page.close)
            return page

        yield open_page
