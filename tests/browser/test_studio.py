"""The page of one product in a browser: what it counts, its keys, its address, and who can use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from interlace.orders.completion import find_completion
from interlace.orders.order_file import read_order
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.policies.orders import Serpentine
from interlace.studio.game import GameOptions, find_named_path, play
from interlace.studio.link import Game, encode_game

from ..studio_server import running
from .conftest import Page


def count_loads(options: GameOptions, path: tuple[Visit, ...]) -> tuple[int, int, int]:
    position = play(options, path)
    return len(path), position.loads, position.touches - position.loads


def test_it_opens_on_four_by_four_tiles_with_three_sentences(page: Page) -> None:
    assert page.page.locator(".tile").count() == 16
    assert page.text("header p").count(".") == 3
    assert page.numbers() == (0, 0, 0)
    assert page.text("#cache-use").startswith("5 panels")


def test_the_keyboard_alone_plays_a_game(page: Page) -> None:
    for _ in range(40):
        page.page.keyboard.press("Tab")
        if page.page.locator(".tile:focus").count():
            break
    page.press("Space", "ArrowRight", "Enter", "ArrowDown", "Shift+Space")
    assert page.numbers() == count_loads(GameOptions(), (Visit(0, 0), Visit(0, 1), Visit(1, 1, True)))
    page.press("u", "u")
    assert page.numbers()[0] == 1
    page.press("r")
    assert page.numbers()[0] == 2
    page.press("Home")
    assert page.numbers() == (0, 0, 0)
    page.press("End")
    assert page.numbers()[0] == 3
    assert "row 1, column 1: step 3, 1 loads" in (page.page.locator(".tile:focus").get_attribute("aria-label") or "")
    page.press("Shift+?")
    assert page.page.locator("#help").is_visible()
    page.press("Escape")
    assert not page.page.locator("#help").is_visible()


def test_the_address_holds_the_game_and_two_pages_do_not_meet(page: Page, browser: Any, address: str) -> None:
    for tile in (0, 1, 5, 6):
        page.click(tile)
    page.page.select_option("#ghost", "row")
    page.press("u")
    page.follows(encode_game(Game(GameOptions(), (Visit(0, 0), Visit(0, 1), Visit(1, 1), Visit(1, 2)), 3, "row")))
    other = Page(browser, page.page.url)
    assert other.numbers() == page.numbers() == count_loads(GameOptions(), (Visit(0, 0), Visit(0, 1), Visit(1, 1)))
    assert other.text("#counters thead .ghost-column") == "row"
    other.press("r")
    assert (other.numbers()[0], page.numbers()[0]) == (4, 3)
    other.close()
    broken = Page(browser, f"{address}#nonsense")
    assert "this link holds no game" in broken.text("#setup-error")
    broken.click(3)
    assert broken.numbers() == (1, 2, 0)
    broken.page.close()  # its console notes the refusal


def test_a_drag_takes_a_run_of_tiles(page: Page) -> None:
    boxes = [page.page.locator(f'[data-tile="{tile}"]').bounding_box() for tile in (4, 7, 15)]
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes if box]
    page.page.mouse.advance_lengths(*middles[0])
    page.page.mouse.down()
    for middle in middles[1:]:
        page.page.mouse.advance_lengths(*middle)  # faster than a move per tile
    page.page.mouse.up()
    page.wait_until_idle()
    run = (Visit(1, 0), Visit(1, 1), Visit(1, 2), Visit(1, 3), Visit(2, 3), Visit(3, 3))
    assert page.numbers() == count_loads(GameOptions(), run)


def test_an_order_plays_beside_a_ghost_and_is_saved(page: Page, tmp_path: Path) -> None:
    page.page.select_option("#speed", "60")
    page.page.select_option("#ghost", "row")
    page.page.select_option("#order", "serpentine")
    page.page.get_by_text("16 / 16").wait_for()
    page.wait_until_idle()
    assert page.numbers() == count_loads(GameOptions(), find_named_path(GameOptions().grid, "serpentine"))
    assert page.text('[data-ghost="loads"]') == "17"
    page.page.check("#heat")
    assert page.page.locator("svg.heat").count() == 1
    page.page.get_by_text("5: 1.44 MB").wait_for()  # of the curve: 11 panels of 131072 bytes
    with page.page.expect_download() as download:
        page.page.click("#save")
    download.value.save_as(tmp_path / "mine.json")
    order = read_order((tmp_path / "mine.json").read_text())
    assert (order.compute_permutation((4, 4)) == Serpentine().compute_permutation((4, 4))).all()
    page.press("Home")
    page.page.set_input_files("#file", tmp_path / "mine.json")
    page.page.get_by_text("16 / 16").wait_for()


def test_a_hint_says_how_well_it_can_still_end_and_follows_the_game(page: Page) -> None:
    page.choose(m=384, n=384, capacity=3)
    for tile in (0, 4, 8):
        page.click(tile)
    page.press("h")
    least = find_completion(PanelGrid(3, 3), (Visit(0, 0), Visit(1, 1), Visit(2, 2)), 3, EvictionPolicy.LRU)
    page.page.locator("#finish").wait_for(timeout=60_000)
    assert page.text("#least-answer") == f"The least from here is exactly {least.loads} loads: proved."
    assert page.page.locator(".tile.hint").count() == 1
    page.page.select_option("#speed", "60")
    page.page.click("#finish")
    page.page.get_by_text("9 / 9").wait_for()
    assert page.numbers()[:2] == (9, least.loads)
    page.press("Home")
    page.click(5)
    assert page.page.locator(".tile.hint").count() == 0


def test_what_makes_no_sense_is_told_and_the_game_goes_on(page: Page) -> None:
    page.click(0)
    page.page.locator('[name="capacity"]').fill("1")
    page.page.locator('[name="capacity"]').blur()
    page.page.locator("#setup-error").wait_for()
    assert "use a cache of at least 2" in page.text("#setup-error")
    page.said = [said for said in page.said if "400" not in said]  # the browser notes the refusal
    page.choose(capacity=3)
    assert page.page.locator("#setup-error").is_hidden()
    page.click(1)
    assert page.numbers() == (2, 3, 1)


def test_everybody_can_use_it(axe_browser: Any, address: str) -> None:
    page = Page(axe_browser, address)
    page.page.select_option("#ghost", "row")
    for tile in (0, 1, 2, 3, 7, 6):
        page.click(tile)
    page.usable()
    page.close()


def test_a_server_that_is_gone_is_told_and_loses_nothing(browser: Any, address: str) -> None:
    with running() as port:
        page = Page(browser, f"http://127.0.0.1:{port}/")
        page.click(5)
        page.follows(encode_game(Game(GameOptions(), (Visit(1, 1),), 1)))
    page.click(6)
    page.page.locator("#setup-error:not([hidden])").wait_for()
    assert "The server does not answer" in page.text("#setup-error")
    link = page.page.url.partition("#")[2]
    page.page.close()
    again = Page(browser, f"{address}#{link}")
    assert again.numbers() == (1, 2, 0)
    again.close()


def test_the_grid_and_its_counters_are_in_view_and_nothing_is_cut(page: Page) -> None:
    for width, height in ((1280, 720), (820, 1180)):
        page.page.set_viewport_size({"width": width, "height": height})
        for selector in ("#board svg", "#transport", "#counters", "#cache"):
            box = page.page.locator(selector).bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= height
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
