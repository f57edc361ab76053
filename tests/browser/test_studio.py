"""The page of the studio in a browser: what it counts, its keys, its address, and who can use it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

import interlace as il  # noqa: E402
from interlace.cli.trace import arrows  # noqa: E402
from interlace.orders.completion import completion  # noqa: E402
from interlace.orders.panels import Cache, PanelGrid, Visit  # noqa: E402
from interlace.orders.saved import read_order  # noqa: E402
from interlace.planner.predict import predict  # noqa: E402
from interlace.policies.orders import Serpentine  # noqa: E402
from interlace.studio.chain import Chain, touched_by  # noqa: E402
from interlace.studio.chain import play as play_chain  # noqa: E402
from interlace.studio.game import Options, Unit, named_path, play  # noqa: E402
from interlace.studio.plan_view import PlanView  # noqa: E402
from interlace.studio.records import RecordView  # noqa: E402
from interlace.studio.timeline import Timeline, TimelineView  # noqa: E402
from interlace.trace.perfetto import to_perfetto  # noqa: E402

from ..studio_server import running  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium is installed: apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running() as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Pages of one profile."""
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
        chromium.close()


@pytest.fixture(scope="module")
def probed(browser: Any) -> Any:
    """As ``browser``, for pages that axe is put into, which their own policy would not allow."""
    return browser.browser.new_context(viewport={"width": 1280, "height": 720}, bypass_csp=True)


class Page:
    """A page that is open; its console must stay silent."""

    def __init__(self, browser: Any, address: str) -> None:
        self.page = browser.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        here = "/".join(address.split("/")[:3])
        self.page.on("request", lambda request: self.said.extend([request.url] * (not request.url.startswith(here))))
        self.page.goto(address)
        self.idle()

    def idle(self) -> None:
        self.page.wait_for_selector("html[data-busy=false]", state="attached")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.idle()

    def click(self, tile: int) -> None:
        self.page.click(f'[data-tile="{tile}"]')
        self.idle()

    def choose(self, **options: object) -> None:
        for name, value in options.items():
            field = self.page.locator(f'#setup [name="{name}"]')
            if isinstance(value, str):
                field.select_option(value)
            else:
                field.fill(str(value))
                field.blur()
            self.idle()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def numbers(self) -> tuple[int, int, int]:
        """Steps, loads and hits, as they are shown."""
        self.idle()
        read = "(ids) => ids.map((id) => document.getElementById(id).innerText)"
        shown = self.page.evaluate(read, ["steps", "loads", "hits"])
        steps, loads, hits = (int(text.partition("/")[0].replace(",", "")) for text in shown)
        return steps, loads, hits


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Page]:
    page = Page(browser, address)
    yield page
    assert page.said == []
    page.page.close()


def counted(options: Options, path: tuple[Visit, ...]) -> tuple[int, int, int]:
    position = play(options, path)
    return len(path), position.loads, position.touches - position.loads


def test_it_opens_on_four_by_four_tiles_with_three_sentences(page: Page) -> None:
    assert page.page.locator(".tile").count() == 16
    assert page.text("header p").count(".") == 3
    assert page.numbers() == (0, 0, 0)
    assert page.text("#cache-use").startswith("5 panels")


@pytest.mark.parametrize("seed", range(3))
def test_counters_are_those_of_the_study_of_orders_after_every_step(page: Page, seed: int) -> None:
    rng = random.Random(seed)
    rows, columns, capacity = rng.randint(2, 5), rng.randint(2, 5), rng.randint(2, 7)
    options = Options(
        m=128 * rows,
        n=128 * columns,
        tile_k=rng.choice((512, 256)),
        capacity=capacity,
        unit=Unit.TILES if seed == 2 else Unit.PANELS,
        cache=Cache.OPT if seed == 1 else Cache.LRU,
        workers=3 if seed == 2 else 1,
    )
    page.choose(m=options.m, n=options.n, tile_k=options.tile_k, capacity=capacity, unit=options.unit.value)
    page.choose(cache=options.cache.value, workers=options.workers)
    path: list[Visit] = []
    ahead: list[Visit] = []
    for _ in range(14):
        closed = {visit[:2] for visit in path}
        left = [tile for tile in product(range(rows), range(columns)) if tile not in closed]
        what = rng.choice(("click", "click", "click", "undo", "redo", "jump"))
        if what == "undo":
            page.press("u")
            ahead = path[-1:] + ahead
            path = path[:-1]
        elif what == "redo":
            page.press("r")
            path, ahead = path + ahead[:1], ahead[1:]
        elif what == "jump":
            every = path + ahead
            at = rng.randint(0, len(every))
            page.page.locator("#step").fill(str(at))
            path, ahead = every[:at], every[at:]
        elif left:
            tile = rng.choice(left)
            page.click(tile[0] * columns + tile[1])
            path.append(Visit(*tile))
            ahead = ahead[1:] if ahead[:1] == path[-1:] else []
        assert page.numbers() == counted(options, tuple(path))


def test_the_keyboard_alone_plays_a_game(page: Page) -> None:
    for _ in range(40):
        page.page.keyboard.press("Tab")
        if page.page.locator(".tile:focus").count():
            break
    page.press("Space", "ArrowRight", "Enter", "ArrowDown", "Shift+Space")
    assert page.numbers() == counted(Options(), (Visit(0, 0), Visit(0, 1), Visit(1, 1, True)))
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
    page.page.wait_for_timeout(200)  # the address follows
    other = Page(browser, page.page.url)
    assert other.numbers() == page.numbers() == counted(Options(), (Visit(0, 0), Visit(0, 1), Visit(1, 1)))
    assert other.text("#counters thead .ghost-column") == "row"
    other.press("r")
    assert (other.numbers()[0], page.numbers()[0]) == (4, 3)
    other.page.close()
    broken = Page(browser, f"{address}#nonsense")
    assert "this link holds no game" in broken.text("#setup-error")
    broken.click(3)
    assert broken.numbers() == (1, 2, 0)
    broken.page.close()


def test_a_drag_takes_a_run_of_tiles(page: Page) -> None:
    boxes = [page.page.locator(f'[data-tile="{tile}"]').bounding_box() for tile in (4, 7, 15)]
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes if box]
    page.page.mouse.move(*middles[0])
    page.page.mouse.down()
    for middle in middles[1:]:
        page.page.mouse.move(*middle)  # faster than a move per tile
    page.page.mouse.up()
    page.idle()
    run = (Visit(1, 0), Visit(1, 1), Visit(1, 2), Visit(1, 3), Visit(2, 3), Visit(3, 3))
    assert page.numbers() == counted(Options(), run)


def test_an_order_plays_beside_a_ghost_and_is_saved(page: Page, tmp_path: Path) -> None:
    page.page.select_option("#speed", "60")
    page.page.select_option("#ghost", "row")
    page.page.select_option("#order", "serpentine")
    page.page.get_by_text("16 / 16").wait_for()
    page.idle()
    assert page.numbers() == counted(Options(), named_path(Options().grid, "serpentine"))
    assert page.text('[data-ghost="loads"]') == "17"
    page.page.check("#heat")
    assert page.page.locator("svg.heat").count() == 1
    page.page.get_by_text("5: 1.44 MB").wait_for()  # of the curve: 11 panels of 131072 bytes
    with page.page.expect_download() as download:
        page.page.click("#save")
    download.value.save_as(tmp_path / "mine.json")
    order = read_order((tmp_path / "mine.json").read_text())
    assert (order.permutation((4, 4)) == Serpentine().permutation((4, 4))).all()
    page.press("Home")
    page.page.set_input_files("#file", tmp_path / "mine.json")
    page.page.get_by_text("16 / 16").wait_for()


def test_a_hint_says_how_well_it_can_still_end_and_follows_the_game(page: Page) -> None:
    page.choose(m=384, n=384, capacity=3)
    for tile in (0, 4, 8):
        page.click(tile)
    page.press("h")
    least = completion(PanelGrid(3, 3), (Visit(0, 0), Visit(1, 1), Visit(2, 2)), 3, Cache.LRU)
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


def test_everybody_can_use_it(probed: Any, address: str) -> None:
    page = Page(probed, address)
    page.page.select_option("#ghost", "row")
    for tile in (0, 1, 2, 3, 7, 6):
        page.click(tile)
    for scheme in ("light", "dark"):
        page.page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()
    page.page.close()


def test_a_server_that_is_gone_is_told_and_loses_nothing(browser: Any, address: str) -> None:
    with running() as port:
        page = Page(browser, f"http://127.0.0.1:{port}/")
        page.click(5)
    page.click(6)
    page.page.locator("#setup-error:not([hidden])").wait_for()
    assert "The server does not answer" in page.text("#setup-error")
    link = page.page.url.partition("#")[2]
    page.page.close()
    again = Page(browser, f"{address}#{link}")
    assert again.numbers() == (1, 2, 0)
    again.page.close()


@pytest.fixture
def chain_page(probed: Any, address: str) -> Iterator[Page]:
    page = Page(probed, f"{address}chain.html")
    yield page
    assert page.said == []
    page.page.close()


def test_two_products_count_as_the_simulation_does_and_say_what_a_locked_tile_misses(chain_page: Page) -> None:
    chain, rng = Chain(3, 2, 2, 3, 6), random.Random(5)
    chain_page.choose(rows=3, inner=2, hidden=2, columns=3, capacity=6)
    needs, path = touched_by(chain).needs, list[int]()
    for _ in range(12):
        item = rng.choice([item for item in range(len(needs)) if item not in path])
        chain_page.click(item)
        missing = [need for need in needs[item] if need not in path]
        marked = chain_page.page.locator(".tile.hint")
        assert sorted(int(tile.get_attribute("data-tile") or "") for tile in marked.all()) == missing
        assert chain_page.text("#missing").startswith(f"Locked: {len(missing)} tile" if missing else "")
        path += [] if missing else [item]
        position = play_chain(chain, tuple(path))
        assert chain_page.numbers() == (len(path), sum(position.loads.values()), position.hits)
        assert int(chain_page.text("#y")) == position.loads.get("y", 0)
    found = axe.Axe().run(chain_page.page)
    assert found.violations_count == 0, found.generate_report()


def test_two_products_play_orders_by_keys_and_stay_in_the_address(chain_page: Page, browser: Any) -> None:
    chain_page.page.select_option("#ghost", "op after op")
    chain_page.page.locator("#speed").select_option("60")
    chain_page.page.locator("#order").select_option("whole rows")
    chain_page.page.get_by_text("32 / 32").wait_for()
    chain_page.idle()
    assert (chain_page.text("#y"), chain_page.text('[data-ghost="y"]')) == ("0", "16")
    chain_page.press("u", "u")
    chain_page.page.wait_for_timeout(200)  # the address follows
    other = Page(browser, chain_page.page.url)
    assert other.numbers() == chain_page.numbers()
    assert other.numbers()[0] == 30
    other.press("Home")
    other.page.locator('[data-tile="0"]').focus()
    other.press("Space", "ArrowRight", "Enter", "ArrowDown", "r")
    assert other.numbers()[0] == 3
    other.page.close()


def test_a_plan_shows_lanes_grids_and_what_an_item_waits_for(probed: Any) -> None:
    tile = il.MatmulTile(16, 16, 16)
    graph = il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile)
    plan = il.build(graph, il.Choices(3, policy=il.RowSync()))
    with running(PlanView.of(plan)) as port:
        page = Page(probed, f"http://127.0.0.1:{port}/plan.html")
        assert page.text("#proof") == f"Proved: {il.verify(plan)}."
        assert page.page.locator("#grids canvas").count() == 2
        page.page.fill("#item", str(len(plan.items) - 1))
        page.page.locator("#item").blur()
        page.idle()
        assert page.text("#detail .name") == "op 'second', tile (3, 2)"
        posting = page.page.locator("#detail li").all_inner_texts()
        assert posting == ["op 'first', tile (3, 0)", "op 'first', tile (3, 1)"]
        page.page.click("text=op 'first', tile (3, 1)")
        page.idle()
        assert page.text("#detail .name") == "op 'first', tile (3, 1)"
        page.press("n", "b", "+", "0")
        assert page.page.locator("#item").input_value() == "7"
        page.page.select_option("#colours", "worker")
        page.page.select_option("#op", "1")
        lane = page.page.locator("#lanes").bounding_box()
        assert lane is not None
        page.page.mouse.click(lane["x"] + 4, lane["y"] + 24)  # the first item of the first worker
        page.idle()
        assert page.text("#detail .name") == "op 'first', tile (0, 0)"
        found = axe.Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()
        assert page.said == []
        page.page.close()


def test_without_a_plan_the_page_says_how_to_begin_with_one(browser: Any, address: str) -> None:
    page = Page(browser, f"{address}plan.html")
    assert "interlace studio plan.json" in page.text("#about")
    assert page.page.locator("#lanes").is_hidden()
    assert page.said == []
    page.page.close()


def test_two_traces_share_an_axis_and_say_who_handed_over_to_whom(probed: Any) -> None:
    tile = il.MatmulTile(16, 16, 16)
    plan = il.build(il.workloads.two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Choices(3))
    trace = predict(plan, il.H200).trace
    data = to_perfetto(trace, grids=[op.grid for op in plan.graph.ops], arrows=arrows(plan, trace))
    timeline = Timeline.read(json.dumps(data))
    with running(TimelineView((timeline, timeline))) as port:
        page = Page(probed, f"http://127.0.0.1:{port}/trace.html")
        assert page.page.locator("canvas.lanes").count() == 2
        assert page.text("#detail .name") == "first, tile (0, 0)"
        busy = timeline.shown()["summary"]["busy"]
        assert f"{100 * busy:.1f} %" in page.text("#summaries .counters >> nth=0")
        last = len(plan.items) - 1
        page.page.fill("#item", str(last))
        page.page.locator("#item").blur()
        assert page.text("#detail .name") == "second, tile (3, 2)"
        giver = timeline.after[last]
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
        found = axe.Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()
        assert page.said == []
        page.page.close()


def test_a_record_is_a_plot_and_a_table_of_the_same_rows(probed: Any) -> None:
    record = (Path(__file__).parents[2] / "benchmarks" / "results" / "ffn-h200.json").read_text()
    rows = json.loads(record)["rows"]
    with running(RecordView.read(record)) as port:
        page = Page(probed, f"http://127.0.0.1:{port}/records.html")
        page.page.locator("#plot svg").wait_for()
        assert page.page.locator("#plot title").count() == len(rows)
        told = [line.split("\t") for line in page.text("#rows tbody").splitlines()]
        assert [(cells[0], cells[1], cells[7]) for cells in told] == [
            (row["preset"], str(row["size"]), f"{row['ratio']:.3f}") for row in rows
        ]
        found = axe.Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()
        assert page.said == []
        page.page.close()


@pytest.mark.parametrize("name", ["trace", "records"])
def test_without_a_file_pages_say_how_to_begin_with_one(browser: Any, address: str, name: str) -> None:
    page = Page(browser, f"{address}{name}.html")
    assert "begin with it: interlace " in page.text("#about")
    assert page.said == []
    page.page.close()


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
