"""The page of two products in a browser: what it counts, what is locked, its keys and its address."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from interlace.studio.chain import SUMS, Chain, find_accesses, list_chain_orders, play
from interlace.studio.chain_wire import ChainGame, encode_chain

from .conftest import Page


@pytest.fixture
def chain_page(axe_browser: Any, address: str) -> Iterator[Page]:
    page = Page(axe_browser, f"{address}chain.html")
    yield page
    page.close()


def test_two_products_count_as_the_simulation_does_and_say_what_a_locked_tile_misses(chain_page: Page) -> None:
    chain, rng = Chain(3, 2, 2, 3, 6), random.Random(5)
    chain_page.choose(rows=3, inner=2, hidden=2, columns=3, capacity=6)
    needs, path = find_accesses(chain).dependencies, list[int]()
    for _ in range(12):
        item = rng.choice([item for item in range(len(needs)) if item not in path])
        chain_page.click(item)
        missing = [need for need in needs[item] if need not in path]
        marked = chain_page.page.locator(".tile.hint")
        assert sorted(int(tile.get_attribute("data-tile") or "") for tile in marked.all()) == missing
        assert chain_page.text("#missing").startswith(f"Locked: {len(missing)} tile" if missing else "")
        path += [] if missing else [item]
        position = play(chain, tuple(path))
        assert chain_page.numbers() == (len(path), sum(position.loads.values()), position.hits)
        assert int(chain_page.text("#y")) == position.loads.get("y", 0)
    chain_page.usable()


def test_two_products_play_orders_by_keys_and_stay_in_the_address(chain_page: Page, browser: Any) -> None:
    chain_page.page.select_option("#ghost", "op after op")
    chain_page.page.locator("#speed").select_option("60")
    chain_page.page.locator("#order").select_option("whole rows")
    chain_page.page.get_by_text("32 / 32").wait_for()
    chain_page.wait_until_idle()
    assert (chain_page.text("#y"), chain_page.text('[data-ghost="y"]')) == ("0", "16")
    chain_page.press("u", "u")
    chain_page.follows(encode_chain(ChainGame(Chain(), list_chain_orders(Chain())["whole rows"](), 30, "op after op")))
    other = Page(browser, chain_page.page.url)
    assert other.numbers() == chain_page.numbers()
    assert other.numbers()[0] == 30
    other.press("Home")
    other.page.locator('[data-tile="0"]').focus()
    other.press("Space", "ArrowRight", "Enter", "ArrowDown", "r")
    assert other.numbers()[0] == 3
    other.close()


def test_a_game_of_two_products_is_saved_and_opened(chain_page: Page, tmp_path: Path) -> None:
    chain_page.choose(rows=2, inner=1, hidden=2, columns=3, capacity=5)
    for tile in (0, 1, 4, 5, 2):
        chain_page.click(tile)
    chain_page.press("u")
    before = chain_page.numbers()
    with chain_page.page.expect_download() as download:
        chain_page.page.click("#save")
    assert download.value.suggested_filename == "chain.json"
    download.value.save_as(tmp_path / "chain.json")
    chain_page.choose(rows=4, capacity=9)
    assert chain_page.numbers() == (0, 0, 0)
    chain_page.page.set_input_files("#file", tmp_path / "chain.json")
    chain_page.page.get_by_text("4 / 10").wait_for()
    assert chain_page.numbers() == before
    assert chain_page.page.locator('[name="capacity"]').input_value() == "5"
    chain_page.press("r")
    assert chain_page.numbers()[0] == 5


def test_a_tile_of_two_halves_takes_two_clicks_each_for_what_its_half_needs(chain_page: Page) -> None:
    chain_page.choose(rows=2, inner=1, hidden=2, columns=2, capacity=6)
    chain_page.page.select_option('[name="parts"]', "2")
    chain_page.wait_until_idle()
    chain, tile = Chain(2, 1, 2, 2, 6, parts=2), chain_page.page.locator('[data-tile="4"]')
    for clicks, path, label in (
        ((4,), (), "out, row 0, column 0: locked"),
        ((0, 4), (0, 4), "step 2, 1 loads, the other half, locked"),
        ((4,), (0, 4), "the other half, locked"),  # since y[0, 1] is missing
        ((1, 4), (0, 4, 1, 8), "out, row 0, column 0: step 2 and 4, 2 loads"),
    ):
        for number in clicks:
            chain_page.click(number)
        position = play(chain, path)
        assert chain_page.numbers() == (len(path), sum(position.loads.values()), position.hits)
        assert label in (tile.get_attribute("aria-label") or "")
    assert chain_page.text("#missing") == ""
    chain_page.page.locator("#speed").select_option("60")
    chain_page.page.locator("#order").select_option("half rows")
    chain_page.page.get_by_text("12 / 12").wait_for()
    chain_page.wait_until_idle()
    assert int(chain_page.text("#partial-sums")) == play(chain, list_chain_orders(chain)["half rows"]()).loads.get(
        SUMS, 0
    )
    chain_page.usable()
