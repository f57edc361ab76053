"""The cache of tuned settings: what is kept is found again, and nothing damaged is ever fatal or used."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import bf16, fp16, fp32
from interlace.kernels.matmul import Activation
from interlace.policies.orders import GroupedPanels, Hilbert, RowMajor
from interlace.policies.splits import SplitK
from interlace.workloads import tuned
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, hopper_setting
from interlace.workloads.persistent import persistent_setting
from interlace.workloads.settings import FFNSetting, ffn_settings

GPU = "some GPU"
SHAPE = FFNShape(4096, 14336, Activation.RELU, False)
SETTING = replace(hopper_setting(16, SHAPE), split_down=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    return tmp_path


def keep(setting: HopperSetting = SETTING) -> Path:
    return tuned.store(GPU, 16, SHAPE, setting, 58.5)


def test_what_is_stored_is_found_and_replaced_and_lies_in_the_cache(cache: Path) -> None:
    assert tuned.lookup(GPU, 16, SHAPE) is None
    path = keep()
    assert tuned.lookup(GPU, 16, SHAPE) == SETTING
    assert json.loads(path.read_text())["us"] == 58.5
    assert keep(replace(SETTING, split_down=2)) == path
    assert tuned.lookup(GPU, 16, SHAPE) == replace(SETTING, split_down=2)
    assert [p for p in cache.rglob("*") if p.is_file()] == [path]


def test_a_setting_is_for_one_gpu_one_shape_one_dtype_and_one_set_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    gated = replace(SHAPE, gated=True, activation=Activation.SILU)
    others = [gated, replace(SHAPE, hidden=2048), replace(SHAPE, ffn=2048), replace(SHAPE, activation=Activation.SILU)]
    assert [tuned.lookup(GPU, 16, shape) for shape in others] == [None] * 4
    assert tuned.lookup(GPU, 15, SHAPE) is None
    assert tuned.lookup("another GPU", 16, SHAPE) is None
    assert tuned.lookup(GPU, 16, SHAPE, fp16) is None
    assert tuned.lookup(GPU, 16, SHAPE, bf16) == SETTING
    monkeypatch.setattr(tuned, "_versions", lambda: (("interlace", "0"),))
    assert tuned.lookup(GPU, 16, SHAPE) is None


def test_versions_are_those_of_what_compiles(cache: Path) -> None:
    import interlace

    versions = json.loads(keep().read_text())["key"]["versions"]
    assert versions["interlace"] == interlace.__version__
    assert set(versions) <= {"interlace", "torch", "triton"}


def _damages() -> dict[str, object]:
    def change(**entries: object) -> object:
        return lambda data: {**data, **entries}

    return {
        "later schema": change(schema_version=2),
        "another key": lambda data: {**data, "key": {**data["key"], "m": 17}},
        "no setting": lambda data: {k: v for k, v in data.items() if k != "setting"},
        "list": lambda data: [data],
        "setting is a number": change(setting=3),
        "setting lacks a field": lambda data: {**data, "setting": {"m": 16}},
        "setting makes no launch": lambda data: {**data, "setting": {**data["setting"], "n": 96}},
        "setting is huge": lambda data: {**data, "setting": {**data["setting"], "split_up": 10**12}},
    }


@pytest.mark.parametrize("damage", _damages())
def test_a_damaged_entry_is_ignored_with_a_warning_and_can_be_written_anew(damage: str) -> None:
    path = keep()
    path.write_text(json.dumps(_damages()[damage](json.loads(path.read_text()))))  # type: ignore[operator]
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is ignored: .*`interlace tune` writes it anew"):
        assert tuned.lookup(GPU, 16, SHAPE) is None
    keep()
    assert tuned.lookup(GPU, 16, SHAPE) == SETTING


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"{", b"null", b"[" * 100_000, b"1" * 5000], ids=lambda b: repr(b[:8])
)
def test_a_damaged_file_is_ignored_with_a_warning(content: bytes) -> None:
    keep().write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert tuned.lookup(GPU, 16, SHAPE) is None


def test_a_folder_in_the_place_of_the_file_is_ignored_with_a_warning() -> None:
    path = keep()
    path.unlink()
    path.mkdir()
    with pytest.warns(RuntimeWarning, match="IsADirectoryError"):
        assert tuned.lookup(GPU, 16, SHAPE) is None


def test_many_writers_at_once_leave_every_entry_whole(cache: Path) -> None:
    settings = [replace(SETTING, split_down=parts) for parts in (1, 2, 3, 4)]

    def write(n: int) -> None:
        tuned.store(GPU, n % 8 + 1, SHAPE, settings[n % 4], float(n))

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        list(pool.map(write, range(400)))
        assert [tuned.lookup(GPU, m, SHAPE) for m in range(1, 9)] == settings * 2
    assert len(list(cache.rglob("*.json"))) == len([p for p in cache.rglob("*") if p.is_file()]) == 8


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned.cache_dir() == tmp_path
    monkeypatch.delenv("INTERLACE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tuned.cache_dir() == tmp_path / "xdg" / "interlace"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # to be ignored, says the specification
    assert tuned.cache_dir() == tmp_path / "home" / ".cache" / "interlace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuned.cache_dir() == tmp_path / "home" / ".cache" / "interlace"


def test_without_a_home_nothing_is_found_and_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    for name in ("INTERLACE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="set INTERLACE_CACHE_DIR"):
        tuned.cache_dir()
    assert tuned.lookup(GPU, 16, SHAPE) is None


# ---------------------------------------------------------------- settings of the persistent executor

SMEM = H200.smem_bytes
TRITON = replace(persistent_setting(16, SHAPE, fp32, SMEM), split_down=SplitK(3), order=GroupedPanels(4))


def test_a_setting_of_the_persistent_executor_lies_beside_that_of_the_hopper_executor() -> None:
    hopper = keep()
    persistent = tuned.store(GPU, 16, SHAPE, TRITON, 99.0)
    assert persistent != hopper
    assert json.loads(persistent.read_text())["key"]["kind"] == "persistent"
    assert "kind" not in json.loads(hopper.read_text())["key"]
    assert tuned.lookup(GPU, 16, SHAPE) == SETTING
    assert tuned.lookup_persistent(GPU, 16, SHAPE, bf16, SMEM) == TRITON
    assert tuned.lookup_persistent(GPU, 16, SHAPE, fp32, SMEM) is None


@pytest.mark.parametrize(
    "change",
    [
        {"split_up": 0},
        {"split_down": 65},
        {"group": -1},
        {"group": 4.0},
        {"up": {}},
        {"up": {**TRITON.to_data()["up"], "n": 96}},
        {"up": {**TRITON.to_data()["up"], "n": 2048}},
        {"down": {**TRITON.to_data()["down"], "stages": 100}},
        {"down": {**TRITON.to_data()["down"], "num_warps": 5}},
    ],
)
def test_a_persistent_setting_that_makes_no_launch_is_ignored_with_a_warning(change: dict[str, object]) -> None:
    path = tuned.store(GPU, 16, SHAPE, TRITON, 99.0, fp32)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "setting": {**entry["setting"], **change}}))
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is ignored: .*`interlace tune` writes it anew"):
        assert tuned.lookup_persistent(GPU, 16, SHAPE, fp32, SMEM) is None


@pytest.mark.parametrize("m", [1, 64, 128, 512, 4096])
@pytest.mark.parametrize("gated", [False, True])
def test_tilings_are_the_same_after_json(m: int, gated: bool) -> None:
    for setting in ffn_settings(m, replace(SHAPE, gated=gated, activation=Activation.SILU)):
        assert FFNSetting.from_data(json.loads(json.dumps(setting.to_data()))) == setting


def test_an_order_without_a_number_is_not_kept() -> None:
    with pytest.raises(ValueError, match="splits or an order that have no number"):
        replace(TRITON, order=Hilbert()).to_data()


def test_stages_shrink_to_shared_memory_and_chunks_keep_their_bytes() -> None:
    gated = replace(SHAPE, gated=True, activation=Activation.SILU)
    # A stage of 64 x (128 + 2 * 128) bf16 takes 48 KiB: four in 227 KiB, three in 163.
    for smem_bytes, dtype, k, stages in ((227, bf16, 64, 4), (163, bf16, 64, 3), (227, fp32, 32, 4)):
        setting = persistent_setting(1024, gated, dtype, smem_bytes << 10)
        assert (setting.up.m, setting.up.n, setting.up.k, setting.up.stages) == (128, 128, k, stages)
        assert setting.order == RowMajor()
