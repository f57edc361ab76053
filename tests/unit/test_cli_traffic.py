"""``interlace traffic``: its figures, its table of orders, its picture, and how it refuses."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from interlace.cli import names, traffic_plot, traffic_study
from interlace.core.devices import H200, L2
from interlace.planner.bounds import SMITH

from .commands import fail, succeed

#: 4 x 6 tiles of 32 x 32 in 8 chunks of 16: chunks of 1 KiB, outputs of 2 KiB.
SMALL = ["traffic", "one-matmul", "--m", "128", "--n", "192", "--k", "128", "--tile", "32x32x16", "--workers", "4"]
TILES, CHUNKS = 24, 8
READ = 2 * (128 + 192) * 128


def record(path: Path, *options: str) -> dict[str, Any]:
    succeed(*SMALL, *options, "--json", path)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_json_has_the_documented_keys_and_figures_that_add_up(tmp_path: Path) -> None:
    data = record(tmp_path / "t.json", "--cache", "32KiB", "--order", "row")
    assert {key: data[key] for key in ("workload", "tiles", "workers", "loads", "cache")} == {
        "workload": {"name": "one-matmul", "m": 128, "n": 192, "k": 128, "dtype": "bf16"},
        "tiles": "matmul 32x32x16",
        "workers": 4,
        "loads": 2 * TILES * CHUNKS,
        "cache": {"name": "one cache", "sides": 1, "side_bytes": 32 << 10},
    }
    (found,) = data["orders"]
    assert found["order"] == "row"
    assert found["loaded_bytes"] == data["loads"] * 1024
    assert found["hit_bytes"] + found["dram_read_bytes"] == found["loaded_bytes"]
    assert found["hit_rate"] == pytest.approx(found["hit_bytes"] / found["loaded_bytes"])
    assert sum(found["dram_read_bytes_by_tensor"].values()) == found["dram_read_bytes"] > READ
    assert found["dram_read_interval_bytes"] == [found["dram_read_bytes"]] * 2
    assert found["dram_written_bytes"] == 2 * 128 * 192
    assert found["compulsory_bytes"] == READ
    safe, both, leading = data["bounds"]
    assert [(b["label"], b["counts"]) for b in data["bounds"]] == [
        ("safe", "loads"),
        ("safe", "loads and stores"),
        ("leading order", "loads"),
    ]
    assert {b["source"] for b in data["bounds"]} == {SMITH}
    assert safe["bytes"] == READ
    assert both["bytes"] == READ + 2 * 128 * 192
    assert found["over_safe"] == pytest.approx(found["dram_read_bytes"] / safe["bytes"])
    assert found["over_leading_order"] == pytest.approx(found["dram_read_bytes"] / leading["bytes"])
    pages = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert [key for key in [*data, *found, *safe] if f"`{key}`" not in pages] == []


def test_four_workers_of_one_row_share_its_chunks(tmp_path: Path) -> None:
    # A wave of four columns: x once, w four times, chunk by chunk; six waves, two of which lie in two rows.
    data = record(tmp_path / "t.json", "--cache", "7KiB", "--order", "row")
    assert data["orders"][0]["dram_read_bytes_by_tensor"] == {"x": 8 * CHUNKS * 1024, "w": 24 * CHUNKS * 1024}


def test_a_cache_for_everything_reads_what_is_compulsory(tmp_path: Path) -> None:
    for options in (["--cache", "1MiB"], [], ["--cache", "H200"]):
        data = record(tmp_path / "t.json", *options)
        assert data["orders"][0]["dram_read_bytes"] == pytest.approx(READ, abs=2)
        assert data["orders"][0]["order"] == "grouped:8"
        if "--cache" not in options or "H200" in options:
            assert data["cache"] == {"name": H200.name, "sides": 2, "side_bytes": 31 << 20}


def test_the_table_names_bounds_ratios_and_source() -> None:
    shown = " ".join(succeed(*SMALL, "--cache", "7KiB", "--order", "row").replace("│", " ").split())
    assert "row: 128 x 192 x 128, bf16; matmul 32x32x16" in shown
    assert "cache one cache of 7 KiB" in shown
    assert "loads 384 pieces, 393 kB" in shown
    assert "hits 131 kB, 33.33 % of the loads" in shown
    assert "read from memory 262 kB x 65.5 kB w 197 kB written to memory 49.2 kB" in shown
    assert "compulsory reads 81.9 kB; 3.20x is read" in shown
    assert "bound on reads, safe 81.9 kB; 3.20x is read" in shown
    # 2 * 128 * 192 * 128 elements of 2 bytes over the root of the 3584 that fit
    assert "bound on reads, leading order 210 kB; 1.25x is read" in shown
    assert SMITH in shown


def test_a_chips_cache_has_an_interval_near_a_knee(tmp_path: Path) -> None:
    large = ["traffic", "one-matmul", "--preset", "4096-cubed", "--tile", "128x128x64", "--order"]
    shown = {}
    for order in ("hilbert", "grouped:32"):
        shown[order] = " ".join(succeed(*large, order, "--json", tmp_path / "t.json").replace("│", " ").split())
        (found,) = json.loads((tmp_path / "t.json").read_text())["orders"]
        low, high = found["dram_read_interval_bytes"]
        assert low <= found["dram_read_bytes"] <= high
        assert ("near a knee of the cache" in shown[order]) == (high > 1.02 * low)
    assert "read from memory 108 MB; 99.2 MB to 209 MB near a knee of the cache x" in shown["hilbert"]


def test_the_sweep_lists_unlike_orders_by_traffic(tmp_path: Path) -> None:
    data = record(tmp_path / "t.json", "--cache", "16KiB", "--sweep")
    listed = [found["order"] for found in data["orders"]]
    expected = {"row", "column", "serpentine", "morton", "hilbert", "grouped:2"}
    assert expected <= set(listed)
    assert {"grouped:1", "grouped:4", "grouped:8"} & set(listed) == set(), "row-major, and column-major twice"
    read = [found["dram_read_bytes"] for found in data["orders"]]
    assert read == sorted(read)
    assert read[0] < read[-1]
    alone = record(tmp_path / "t.json", "--cache", "16KiB", "--order", listed[0])
    assert alone["orders"][0] == data["orders"][0]
    shown = succeed(*SMALL, "--cache", "16KiB", "--sweep")
    lines = [line for line in shown.splitlines() if any(f"│ {name} " in line for name in listed)]
    assert [line.split()[1] for line in lines] == listed
    assert "bounds on reads: safe 81.9 kB" in shown


def test_workers_and_dtype_are_taken(tmp_path: Path) -> None:
    data = record(tmp_path / "t.json", "--dtype", "fp32", "--cache", "1MiB")
    assert data["orders"][0]["dram_read_bytes"] == 2 * READ
    assert data["workload"]["dtype"] == "fp32"
    one = record(tmp_path / "one.json", "--cache", "7KiB", "--order", "row")
    succeed(*SMALL[:-1], "1", "--cache", "7KiB", "--order", "row", "--json", tmp_path / "two.json")
    alone = json.loads((tmp_path / "two.json").read_text())
    assert alone["orders"][0]["dram_read_bytes"] > one["orders"][0]["dram_read_bytes"]


# ---------------------------------------------------------------- the picture


@pytest.mark.parametrize("cache", ["16KiB", "h200"])
def test_the_plot_is_a_picture(tmp_path: Path, cache: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "orders.png"
    shown = succeed(*SMALL, "--cache", cache, "--sweep", "--plot", path)
    assert f"wrote {path}" in " ".join(shown.split())
    picture = path.read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture) > 20_000
    assert [p.name for p in tmp_path.iterdir()] == ["orders.png"]


def test_labels_keep_apart_and_near_and_inside() -> None:
    step = traffic_plot._LABEL_STEP
    placed = traffic_plot._separate_labels({"a": 0.5, "b": 0.5, "c": 0.9, "d": 0.1, "e": 1.0, "f": 1.0})
    heights = sorted(placed.values())
    assert all(high - low >= step - 1e-9 for low, high in pairwise(heights))
    assert placed["d"] == 0.1
    assert {round(placed[name], 6) for name in "ab"} == {round(0.5 - step / 2, 6), round(0.5 + step / 2, 6)}
    assert heights[-1] <= 1.0


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = fail(1, *SMALL, "--sweep", "--plot", tmp_path / "t.png")
    assert message == "error: --plot needs matplotlib; run: pip install -e '.[plot]'"
    assert not list(tmp_path.iterdir())


def test_a_matplotlib_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    message = fail(1, *SMALL, "--sweep", "--plot", tmp_path / "t.png")
    assert message.startswith("error: --plot needs matplotlib, which does not start: ")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- what makes no sense


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("50MiB", 50 << 20),
        ("60MB", 60_000_000),
        ("512KiB", 512 << 10),
        ("65536", 65536),
        ("1.5GiB", 3 << 29),
        ("50mib", 50 << 20),
        ("1 kB", 1000),
        ("64GiB", 64 << 30),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert names.parse_size(text) == nbytes
    device = names.parse_cache(text)
    assert (device.l2, device.l2_bytes, device.speed_spread) == (L2(1, nbytes), nbytes, 0.0)


@pytest.mark.parametrize("text", ["", "MiB", "-5MiB", "5XB", "1e6", "5MiBs", "٥MiB", "0x10", "nan", "1..5MB"])
def test_no_sizes_list_the_forms(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no size; write bytes or a unit, such as 50MiB, 60MB"):
        names.parse_size(text)


def test_the_command_takes_as_many_pieces_as_the_simulation() -> None:
    from interlace.sim.traffic import MAX_ENTRIES

    assert traffic_study._MAX_PIECES == MAX_ENTRIES


@pytest.mark.parametrize("text", ["0", "0MiB", "0.1", "65GiB", "999999999999GB"])
def test_sizes_out_of_range_name_the_range(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use 1 to 64GiB"):
        names.parse_size(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cache", "0"], "'0' is 0 bytes; use 1 to 64GiB, or h100 or h200 for the L2 of that chip"),
        (["--cache", "-1MiB"], "such as 50MiB, 60MB, 512KiB, 65536, or h100"),
        (["--cache", "A100"], "'A100' is no size"),
        (["--cache", "3KiB"], "a cache of 3 KiB is below one working set: a chunk of all operands and an output tile"),
        (["--cache", "3KiB"], "an output tile take 4 KiB; use a larger --cache or a smaller --tile"),
        (["--order", "rows"], "unknown order 'rows'; use one of row, column, serpentine, morton, hilbert, grouped:8"),
        (["--order", "grouped:0"], "use a positive number"),
        (["--tile", "1024x1024x64"], "sums up in 4 MiB of fp32, but an SM holds 512 KiB; use a smaller one"),
        (["--tile", "44x32"], "multiples of 8"),
        (["--m", "0"], "--m"),
        (["--n", "-3"], "--n"),
        (["--workers", "0"], "--workers"),
        (["--m", "99999", "--n", "999999"], "tiles, but a simulation takes 4,194,304; use larger tiles"),
        (["--m", "16384", "--n", "16384", "--k", "16384"], "but a simulation takes 33,554,432; use larger chunks"),
        (["--sweep", "--order", "row"], "--sweep compares all orders and takes no --order"),
        (["--plot", "x.png"], "--plot draws the orders of --sweep; pass --sweep too"),
        (["--sweep", "--plot", "x.svg"], "use one that ends in .png"),
        (["--sweep", "--plot", "no/x.png"], "does not exist; make it first"),
    ],
)
def test_what_makes_no_sense_is_exit_code_2_in_words(options: list[str], message: str) -> None:
    assert message in fail(2, *SMALL, *options)
