"""``interlace order``: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interlace.kernels.read_plan import read_plan
from interlace.orders.families import Family, list_families
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads
from interlace.policies.orders import GroupedSerpentine, Hilbert

from .commands import fail, run_command, succeed


def invoke(*arguments: object):
    result = run_command("order", *map(str, arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def record(tmp_path: Path, *arguments: object) -> dict:
    path = tmp_path / "order.json"
    result = invoke(*arguments, "--json", path)
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


def cells(shown: str, first: str) -> list[str]:
    """The other cells of the table row that begins with ``first``."""
    rows = ([cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line)
    return next(row[1:] for row in rows if row[0] == first)


def test_it_shows_the_minimum_one_best_order_and_the_named_ones() -> None:
    result = invoke("--grid", "3x3", "--capacity", "4")
    shown = result.stdout
    assert result.exit_code == 0
    notes = [line for line in result.stderr.splitlines() if not line.startswith("note: compiling")]  # first use only
    assert notes == []
    assert cells(shown, "minimum") == ["7 loads"]
    assert cells(shown, "proved") == ["yes"]
    assert cells(shown, "cache") == ["LRU, 4 panels"]
    picture = [cell for row in range(3) for cell in cells(shown, f"row {row}")]
    assert picture[0] == "0"
    assert sorted(map(int, picture)) == list(range(9))
    assert cells(shown, "row") == ["10", "1.43x"]
    assert cells(shown, "serpentine") == ["8", "1.14x"]


@pytest.mark.parametrize(
    ("cache", "minimum", "row", "serpentine"),
    [("lru", [10, 8, 7, 6], [12, 12, 10, 6], [10, 10, 8, 6]), ("opt", [10, 8, 6, 6], [12, 9, 6, 6], [10, 8, 6, 6])],
)
def test_the_record_has_what_is_known_of_three_by_three(tmp_path: Path, cache, minimum, row, serpentine) -> None:
    found = [record(tmp_path, "--grid", "3x3", "--capacity", c, "--cache", cache) for c in (2, 3, 4, 5)]
    assert [data["minimum"] for data in found] == minimum
    assert [data["families"]["row"] for data in found] == row
    assert [data["families"]["serpentine"] for data in found] == serpentine
    for capacity, data in enumerate(found, 2):
        assert set(data) == {
            *("grid", "chunks", "capacity", "cache", "minimum", "proved", "lower_bound", "stopped"),
            *("states", "path", "column_first", "backwards", "families"),
        }
        assert (data["proved"], data["lower_bound"], data["stopped"]) == (True, data["minimum"], "")
        walk = [Visit(*tile, first) for tile, first in zip(data["path"], data["column_first"], strict=True)]
        assert count_loads(PanelGrid(3, 3), walk, capacity, EvictionPolicy(cache)) == data["minimum"]


@pytest.mark.parametrize(("start", "first"), [("0,0", [0, 0]), ("2,1", [2, 1]), ("any", [0, 0])])
def test_the_path_starts_where_asked(tmp_path: Path, start: str, first: list[int]) -> None:
    data = record(tmp_path, "--grid", "3x4", "--capacity", "4", "--start", start)
    assert (data["minimum"], data["path"][0]) == (8, first)


def test_chunks_bring_sawtooth_and_backward_tiles(tmp_path: Path) -> None:
    options = ("--grid", "3x3", "--capacity", 7, "--chunks", 2)
    data = record(tmp_path, *options)
    assert (data["minimum"], data["families"]["serpentine, sawtooth"], data["families"]["serpentine"]) == (15, 18, 20)
    walk = [Visit(*t, c, b) for t, c, b in zip(data["path"], data["column_first"], data["backwards"], strict=True)]
    assert count_loads(PanelGrid(3, 3, 2), walk, 7, EvictionPolicy.LRU) == 15
    shown = invoke(*options).stdout
    assert cells(shown, "tiles") == ["3 x 3, in 2 chunks"]
    assert "<" in "".join(cell for row in range(3) for cell in cells(shown, f"row {row}"))


def test_a_search_that_stops_short_says_so_and_still_succeeds(tmp_path: Path) -> None:
    result = invoke("--grid", "6x6", "--capacity", 7, "--states", 100)
    assert result.exit_code == 0
    assert cells(result.stdout, "best found") == ["15 loads"]
    assert result.stderr.startswith("note: no proof: the limit of 100 states was reached; 15 is the best found, 1")
    large = invoke("--grid", "20x20", "--capacity", 6)
    assert "20 x 20 tiles with 40 units are too many for exact search, which takes 49 tiles" in large.stderr
    assert "so the beam search answered" in large.stderr
    assert "row 0" not in large.stdout, "a picture of 20 columns does not fit"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grid", "4x4", "--capacity", 1), "a cache of 1 units is less than one working set"),
        (("--grid", "4x4", "--capacity", -3), "a cache of -3 units is less than one working set"),
        (("--grid", "0x4", "--capacity", 3), "rows is 0; use at least 1"),
        (("--grid", "4x4", "--capacity", 3, "--chunks", 0), "chunks is 0; use at least 1"),
        (("--grid", "65x4", "--capacity", 3), "which takes 64 rows, 64 columns"),
        (("--grid", "4x4", "--capacity", 3, "--start", "4,0"), "start (4, 0) is outside the grid; use a row of 0..3"),
        (("--grid", "4x4", "--capacity", 3, "--seconds", 0), "a limit of 0 seconds leaves no search"),
    ],
)
def test_bad_input_is_one_line_with_the_limit(arguments: tuple, message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--grid", "4", "'4' is no grid; write rows x columns, such as 4x4"),
        ("--grid", "-1x4", "'-1x4' is no grid"),
        ("--start", "0", "'0' is no tile; write row,column, such as 0,0, or any"),
        ("--cache", "fifo", "unknown cache 'fifo'; use one of lru, opt"),
    ],
)
def test_what_is_no_name_shows_what_is(option: str, value: str, message: str) -> None:
    result = invoke("--grid", "4x4", "--capacity", 3, option, value)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_every_family_has_the_name_that_the_option_takes() -> None:
    listed = [member.name for member in list_families(PanelGrid(8, 8), 6)]
    assert listed == [
        *("row", "column", "serpentine", "grouped:2", "grouped:4", "grouped:5"),
        *("grouped-serpentine:2", "grouped-serpentine:4", "grouped-serpentine:5", "morton", "hilbert"),
    ]
    assert Family(GroupedSerpentine(3), sawtooth=True).name == "grouped-serpentine:3, sawtooth"


# ---------------------------------------------------------------- orders in files


def save_order(path: Path, grid: list[int], tiles: list[int]) -> str:
    path.write_text(json.dumps({"schema": "interlace-order", "version": 1, "grid": grid, "tiles": tiles}))
    return f"explicit:{path}"


def test_an_order_in_a_file_is_one_that_other_commands_take(tmp_path: Path) -> None:
    matmul = ["one-matmul", "--m", 64, "--n", 64, "--k", 64, "--tile", "16x16x16"]
    hilbert = Hilbert().compute_permutation((4, 4)).tolist()
    mine = save_order(tmp_path / "mine.json", [4, 4], hilbert)
    cache = ["--cache", "4KiB", "--workers", 1]
    by_name, by_file = (succeed("traffic", *matmul, *cache, "--order", o, "--json", "-") for o in ("hilbert", mine))
    assert json.loads(by_name)["orders"][0]["dram_read_bytes"] == json.loads(by_file)["orders"][0]["dram_read_bytes"]
    plan = tmp_path / "plan.json"
    succeed("plan", *matmul, "--order", mine, "--out", plan)
    assert read_plan(plan.read_text()).items.tile.tolist() == hilbert
    assert "SavedOrder" in succeed("run", *matmul, "--device", "cpu", "--executor", "reference", "--order", mine)


@pytest.mark.parametrize(
    ("grid", "tiles", "message"),
    [
        ([2, 2], [0, 1, 3, 2], "this order is of 2 x 2 tiles, and an op has 4 x 4"),
        ([4, 4], [0, 1], "takes 2 of 16 tiles"),
        ([4, 4], [0] * 16, "lists entry 0 16 times"),
        ([4], [], "grid of an order is no pair"),
    ],
)
def test_an_order_of_another_grid_or_of_none_is_refused(
    tmp_path: Path, grid: list[int], tiles: list[int], message: str
) -> None:
    mine = save_order(tmp_path / "mine.json", grid, tiles)
    matmul = ["one-matmul", "--m", 64, "--n", 64, "--k", 64, "--tile", "16x16x16"]
    assert message in fail(2, "traffic", *matmul, "--cache", "4KiB", "--order", mine)


def test_what_is_no_file_of_an_order_is_refused(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a folder"), ("/dev/zero", "is a device"), (tmp_path / "no", "cannot read")):
        assert message in fail(2, "traffic", "one-matmul", "--order", f"explicit:{path}")
