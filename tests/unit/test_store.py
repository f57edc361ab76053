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
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16, fp16
from interlace.core.errors import PlanError
from interlace.core.files import cache_dir
from interlace.deploy import count_flops, select_executor, select_schedule, store
from interlace.deploy.store import CacheEntry, load_cached, store_cached
from interlace.executors import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings
from interlace.workloads import FFNShape, ffn, two_copies

from .gpus import A100

SHAPE = FFNShape(4096, 14336, il.Activation.RELU, False)


#: Graph, device, and the fastest executor that runs it as one launch.
Launch = tuple[il.Graph, DeviceSpec, type[DeviceExecutor]]


def deploy(graph: il.Graph, device: DeviceSpec = il.H200) -> Launch:
    return graph, device, select_executor(graph, device)


def launch(m: int = 16, shape: FFNShape = SHAPE, device: DeviceSpec = il.H200) -> Launch:
    return deploy(ffn(m, shape), device)


def select_default(case: Launch) -> Schedule:
    graph, device, executor = case
    return executor.select_default(graph, device)


def in_parts(parts: int, m: int = 16) -> Schedule:
    """The default with the down-projection in so many parts."""
    graph, device, executor = launch(m)
    tilings = executor.select_default(graph, device).op_tilings
    return executor.make_schedule(graph, device, {**tilings, "down": replace(tilings["down"], parts=parts)})


SCHEDULE = in_parts(3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    return tmp_path


def keep(schedule: Schedule = SCHEDULE, library_us: float | None = None) -> Path:
    return store_cached(*launch(), CacheEntry(schedule, 58.5, library_us))


def test_what_is_stored_is_found_and_replaced_and_lies_in_the_cache(cache: Path) -> None:
    assert load_cached(*launch()) is None
    assert select_schedule(*launch()) == select_default(launch()) != SCHEDULE
    path = keep()
    assert load_cached(*launch()) == CacheEntry(SCHEDULE, 58.5)
    assert select_schedule(*launch()) == SCHEDULE
    assert keep(in_parts(2)) == path
    assert select_schedule(*launch()) == in_parts(2)
    keep(library_us=60.0)
    assert load_cached(*launch()) == CacheEntry(SCHEDULE, 58.5, 60.0)
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
    assert [load_cached(*launch(shape=shape)) for shape in others] == [None] * 4
    assert load_cached(*launch(15)) is None
    assert load_cached(*launch(device=replace(il.H200, name="another GPU"))) is None
    assert load_cached(*launch(device=A100)) is None
    assert load_cached(*deploy(ffn(16, SHAPE, fp16), il.H200)) is None
    assert load_cached(*deploy(ffn(16, SHAPE, bias=True), il.H200)) is None
    assert load_cached(ffn(16, SHAPE), il.H200, PersistentTicketExecutor) is None
    assert select_schedule(*launch()) == SCHEDULE
    monkeypatch.setattr(store, "_list_versions", lambda: (("interlace", "0"),))
    assert load_cached(*launch()) is None


def test_a_problem_is_the_same_however_it_is_tiled() -> None:
    keep()
    tiled = ffn(16, SHAPE, bf16, il.MatmulTile(16, 64, 64), il.MatmulTile(16, 128, 64))
    assert select_schedule(*deploy(tiled, il.H200)) == SCHEDULE
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
        def change_entries(data: dict) -> dict:
            down = {**data["setting"]["ops"]["down"], **entries}
            return {**data, "setting": {**data["setting"], "ops": {**data["setting"]["ops"], "down": down}}}

        return change_entries

    tile = dict(SCHEDULE.tiles["down"])
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
        "an op that there is not": change(setting={"ops": {"off": encode_tilings(SCHEDULE.op_tilings)["ops"]["up"]}}),
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
        assert load_cached(*launch()) is None
    keep()
    assert select_schedule(*launch()) == SCHEDULE


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"{", b"null", b"[" * 100_000, b"1" * 5000], ids=lambda b: repr(b[:8])
)
def test_a_damaged_file_is_ignored_with_a_warning(content: bytes) -> None:
    keep().write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert load_cached(*launch()) is None


def test_a_folder_in_the_place_of_the_file_is_ignored_with_a_warning() -> None:
    path = keep()
    path.unlink()
    path.mkdir()
    with pytest.warns(RuntimeWarning, match="it is no regular file"):
        assert load_cached(*launch()) is None


def test_a_cache_that_others_may_write_is_not_read_and_not_written(cache: Path) -> None:
    keep()
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="not used as a cache, since others may write it"):
        assert select_schedule(*launch()) == select_default(launch())
    with pytest.raises(OSError, match="others may write it"):
        keep()


def test_many_writers_at_once_leave_every_entry_whole(cache: Path) -> None:
    cases = {m: launch(m) for m in range(1, 9)}
    schedules = {m: in_parts((m - 1) % 4 + 1, m) for m in cases}

    def write(n: int) -> None:
        m = n % 8 + 1
        store_cached(*cases[m], CacheEntry(schedules[m], n + 1.0))

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        list(pool.map(write, range(400)))
        assert {m: select_schedule(*case) for m, case in cases.items()} == schedules
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
    assert load_cached(*launch()) is None


# ---------------------------------------------------------------- a graph as one launch


def test_the_fastest_executor_that_can_runs_a_graph_and_its_kernel_is_known() -> None:
    assert (launch()[2], launch(device=A100)[2]) == (MegakernelExecutor, PersistentTicketExecutor)
    fp32 = select_executor(ffn(16, SHAPE, il.fp32), il.H200)
    assert fp32 is PersistentTicketExecutor
    assert launch(shape=replace(SHAPE, hidden=4090))[2] is PersistentTicketExecutor
    assert [executor.kernel for executor in (launch()[2], fp32)] == ["one_launch", "persistent_ticket_kernel"]
    bare = il.Graph("bare", (), (il.Kernel("none").make_op("none", (1,), {}, {}),), (), ())
    with pytest.raises(PlanError, match="no executor runs graph 'bare' as one launch on NVIDIA H200: one_launch: op"):
        select_executor(bare, il.H200)


@pytest.mark.parametrize("m", [1, 16, 100, 1000])
def test_flops_are_those_of_the_tokens_alone(m: int) -> None:
    gated = FFNShape(1040, 2832, il.Activation.SILU, True)  # no multiples of a tile
    assert count_flops(ffn(m, gated)) == 2.0 * m * 1040 * 2832 * 3
    assert count_flops(ffn(m, SHAPE)) == 2.0 * m * 4096 * 14336 * 2
    assert count_flops(two_copies(64, 64)) == 0


def test_a_launch_can_be_sent_to_another_process() -> None:
    for case in (launch(), launch(device=A100)):
        schedule = select_default(case)
        graph, device, executor, there = pickle.loads(pickle.dumps((*case, schedule)))
        assert ((graph, device, executor), there) == (case, schedule)
        assert il.build(graph, there).to_json() == il.build(case[0], schedule).to_json()
