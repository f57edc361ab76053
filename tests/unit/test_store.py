"""The cache of tuned settings: what is kept is found again, and nothing damaged is ever fatal or used."""

from __future__ import annotations

import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import interlace as il
from interlace.core.dtypes import bf16, fp16
from interlace.core.errors import PlanError
from interlace.core.files import cache_dir
from interlace.deploy import Deployment, deploy_graph, store
from interlace.deploy.store import CacheEntry
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.policies.setting import Setting
from interlace.workloads import FFNShape, ffn, two_copies

from .gpus import A100

SHAPE = FFNShape(4096, 14336, il.Activation.RELU, False)


def launch(m: int = 16, shape: FFNShape = SHAPE, device: il.DeviceSpec = il.H200) -> Deployment:
    return deploy_graph(ffn(m, shape), device)


def in_parts(parts: int) -> Setting:
    """The default with the down-projection in so many parts."""
    setting = launch().default_setting
    (up, down) = setting.ops
    return replace(setting, ops=(up, (down[0], replace(down[1], parts=parts))))


SETTING = in_parts(3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    return tmp_path


def keep(setting: Setting = SETTING) -> Path:
    return launch().cache_setting(setting, 58.5)


def test_what_is_stored_is_found_and_replaced_and_lies_in_the_cache(cache: Path) -> None:
    assert launch().cache_entry is None
    assert launch().select_setting() == launch().default_setting != SETTING
    path = keep()
    assert launch().cache_entry == CacheEntry(SETTING, 58.5)
    assert launch().select_setting() == SETTING
    assert keep(in_parts(2)) == path
    assert launch().select_setting() == in_parts(2)
    launch().cache_setting(SETTING, 58.5, library_us=60.0)
    assert launch().cache_entry == CacheEntry(SETTING, 58.5, 60.0)
    assert [p for p in cache.rglob("*") if p.is_file()] == [path]


def test_a_setting_is_for_one_problem_one_gpu_one_executor_and_one_set_of_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep()
    silu = il.Activation.SILU
    others = [
        *(replace(SHAPE, gated=True, activation=silu), replace(SHAPE, hidden=2048)),
        *(replace(SHAPE, ffn=2048), replace(SHAPE, activation=silu)),
    ]
    assert [launch(shape=shape).cache_entry for shape in others] == [None] * 4
    assert launch(15).cache_entry is None
    assert launch(device=replace(il.H200, name="another GPU")).cache_entry is None
    assert launch(device=A100).cache_entry is None
    assert deploy_graph(ffn(16, SHAPE, fp16), il.H200).cache_entry is None
    assert deploy_graph(ffn(16, SHAPE, bias=True), il.H200).cache_entry is None
    assert Deployment(ffn(16, SHAPE), il.H200, PersistentTicketExecutor).cache_entry is None
    assert launch().select_setting() == SETTING
    monkeypatch.setattr(store, "_list_versions", lambda: (("interlace", "0"),))
    assert launch().cache_entry is None


def test_a_problem_is_the_same_however_it_is_tiled() -> None:
    keep()
    tiled = ffn(16, SHAPE, bf16, il.MatmulTile(16, 64, 64), il.MatmulTile(16, 128, 64))
    assert deploy_graph(tiled, il.H200).select_setting() == SETTING
    assert store.describe_problem(tiled) == store.describe_problem(ffn(16, SHAPE))
    # A kernel without a rule for its tiles is known by them.
    assert store.describe_problem(two_copies(64, 64)) != store.describe_problem(two_copies(64, 64, tile=(32, 64)))
    assert json.loads(json.dumps(store.describe_problem(tiled))) == store.describe_problem(tiled)


def test_versions_are_those_of_what_compiles(cache: Path) -> None:
    import interlace

    versions = json.loads(keep().read_text())["key"]["versions"]
    assert versions["interlace"] == interlace.__version__
    assert set(versions) <= {"interlace", "torch", "triton"}


def _damages() -> dict[str, object]:
    def change(**entries: object) -> object:
        return lambda data: {**data, **entries}

    def setting(**entries: object) -> object:
        def changed(data: dict) -> dict:
            down = {**data["setting"]["ops"]["down"], **entries}
            return {**data, "setting": {**data["setting"], "ops": {**data["setting"]["ops"], "down": down}}}

        return changed

    tile = dict(SETTING.op("down").params)
    return {
        "later schema": change(schema_version=3),
        "another key": lambda data: {**data, "key": {**data["key"], "gpu": "another"}},
        "no setting": lambda data: {k: v for k, v in data.items() if k != "setting"},
        "list": lambda data: [data],
        "no time": change(us=None),
        "a time of no number": change(us="fast"),
        "a library's time below zero": change(library_us=-1.0),
        "a time beyond a float": change(us=10**400),
        "a library's time beyond all": change(library_us=1e300),
        "a time that is none": change(us=5e-324),
        "setting is a number": change(setting=3),
        "setting lacks a field": change(setting={}),
        "an op that there is not": change(setting={"ops": {"off": SETTING.to_data()["ops"]["up"]}}),
        "params that tell no tiling": setting(params={"N": 3}),
        "half a tile": setting(params={"BM": 16}),
        "tiles that are none": setting(params={**tile, "BN": 96}),
        "tiles that make no launch": setting(params={**tile, "BN": 2048}),
        "a tile of text": setting(params={**tile, "BN": "64"}),
        "warps that are none": setting(params={**tile, "num_warps": 5}),
        "setting is huge": setting(parts=10**12),
    }


@pytest.mark.parametrize("damage", _damages())
def test_a_damaged_entry_is_ignored_with_a_warning_and_can_be_written_anew(damage: str) -> None:
    path = keep()
    path.write_text(json.dumps(_damages()[damage](json.loads(path.read_text()))))  # type: ignore[operator]
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is ignored: .*`interlace tune` writes it anew"):
        assert launch().cache_entry is None
    keep()
    assert launch().select_setting() == SETTING


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"{", b"null", b"[" * 100_000, b"1" * 5000], ids=lambda b: repr(b[:8])
)
def test_a_damaged_file_is_ignored_with_a_warning(content: bytes) -> None:
    keep().write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert launch().cache_entry is None


def test_a_folder_in_the_place_of_the_file_is_ignored_with_a_warning() -> None:
    path = keep()
    path.unlink()
    path.mkdir()
    with pytest.warns(RuntimeWarning, match="it is no regular file"):
        assert launch().cache_entry is None


def test_a_cache_that_others_may_write_is_not_read_and_not_written(cache: Path) -> None:
    keep()
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="not used as a cache, since others may write it"):
        assert launch().select_setting() == launch().default_setting
    with pytest.raises(OSError, match="others may write it"):
        keep()


def test_many_writers_at_once_leave_every_entry_whole(cache: Path) -> None:
    settings = [in_parts(parts) for parts in (1, 2, 3, 4)]

    def write(n: int) -> None:
        launch(n % 8 + 1).cache_setting(settings[n % 4], n + 1.0)

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        list(pool.map(write, range(400)))
        assert [launch(m).select_setting() for m in range(1, 9)] == settings * 2
    assert len(list(cache.rglob("*.json"))) == len([p for p in cache.rglob("*") if p.is_file()]) == 8


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == tmp_path
    monkeypatch.delenv("INTERLACE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "interlace"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # to be ignored, says the specification
    assert cache_dir() == tmp_path / "home" / ".cache" / "interlace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / "home" / ".cache" / "interlace"


def test_without_a_home_nothing_is_found_and_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    for name in ("INTERLACE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="set INTERLACE_CACHE_DIR"):
        cache_dir()
    assert launch().cache_entry is None


# ---------------------------------------------------------------- a graph as one launch


def test_the_fastest_executor_that_can_runs_a_graph_and_its_kernel_is_known() -> None:
    assert (launch().executor, launch(device=A100).executor) == (MegakernelExecutor, PersistentTicketExecutor)
    fp32 = deploy_graph(ffn(16, SHAPE, il.fp32), il.H200)
    assert fp32.executor is PersistentTicketExecutor
    assert launch(shape=replace(SHAPE, hidden=4090)).executor is PersistentTicketExecutor
    assert [case.executor.kernel for case in (launch(), fp32)] == ["one_launch", "persistent_ticket_kernel"]
    bare = il.Graph("bare", (), (il.Kernel("none").make_op("none", (1,), {}, {}),), (), ())
    with pytest.raises(PlanError, match="no executor runs graph 'bare' as one launch on NVIDIA H200: one_launch: op"):
        deploy_graph(bare, il.H200)


@pytest.mark.parametrize("m", [1, 16, 100, 1000])
def test_flops_are_those_of_the_tokens_alone(m: int) -> None:
    gated = FFNShape(1040, 2832, il.Activation.SILU, True)  # no multiples of a tile
    assert launch(m, gated).flops == 2.0 * m * 1040 * 2832 * 3
    assert launch(m).flops == 2.0 * m * 4096 * 14336 * 2
    assert deploy_graph(two_copies(64, 64), A100).flops == 0


def test_a_launch_can_be_sent_to_another_process() -> None:
    for case in (launch(), launch(device=A100)):
        there = pickle.loads(pickle.dumps(case))
        assert there == case
        assert there.build_plan(there.default_setting).to_json() == case.build_plan(case.default_setting).to_json()
