"""The benchmark of CuSync's workloads: its cases, what it times, and its tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

import interlace as il
from interlace.bench.timing import Rounds
from interlace.core.devices import H200
from interlace.core.errors import ResultError
from interlace.executors.megakernel import MegakernelExecutor
from interlace.policies.sync import RowSync, TileSync
from interlace.workloads import WORKLOADS
from interlace.workloads.base import Option

from ..benchmarks import BENCHMARKS, load_script
from .gpus import FakeProblem
from .toy import Ladder


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**load_script("cusync"))


@pytest.fixture(scope="module")
def cases(script: Any) -> Any:
    return sys.modules[script.list_cases.__module__]


@pytest.fixture(scope="module")
def tables() -> Any:
    return SimpleNamespace(**load_script("report")).cusync


@dataclass(frozen=True)
class Pair(Ladder):
    """A workload with the name and the sizes of CuSync's convolution pairs."""

    name: ClassVar[str] = "conv-pair"

    width: Annotated[int, Option("Rows and columns of each weight.", least=1)] = 16
    channels: Annotated[int, Option("Channels.", least=8)] = 64
    edge: Annotated[int, Option("Rows and columns.", least=1)] = 56
    images: Annotated[int, Option("Images.", least=1)] = 1


# ---------------------------------------------------------------- cases


def test_cases_have_the_sizes_of_the_scripts(cases: Any) -> None:
    keys = [tuple(value for _, value in case.key) for case in cases.list_cases(WORKLOADS[:1])]
    assert len(set(keys)) == len(keys) == 2 * (20 + 4 + 9)
    mlps = [rows for family, model, rows, _ in keys if (family, model) == ("mlp", "gpt3")]
    assert (mlps[0], mlps[8:11], mlps[-1]) == (1, [256, 512, 768], 3072)
    steps = [(rows, cached) for family, model, rows, cached in keys if (family, model) == ("attention", "llama")]
    assert {rows + cached for rows, cached in steps if cached} == {512, 1024, 2048}
    assert max(rows for rows, _ in steps) == 512


def test_any_beginning_covers_all_families_and_sizes(cases: Any) -> None:
    found = cases.list_cases()
    ranks = cases.rank_cases(found)
    order = sorted((case.name for case in found), key=ranks.__getitem__)
    assert len(ranks) == len(found) == 120
    first = [name.split(":") for name in order[:36]]
    assert {(family, model) for family, model, _, _ in first} == {tuple(case.name.split(":")[:2]) for case in found}
    mlps = [int(rows) for family, model, rows, _ in first if (family, model) == ("mlp", "gpt3")]
    assert (min(mlps), max(mlps)) == (1, 2304)
    assert any(100 < rows < 1000 for rows in mlps)


def test_convolutions_join_when_their_workload_is_registered(cases: Any) -> None:
    plain, joined = cases.list_cases(WORKLOADS[:1]), cases.list_cases((*WORKLOADS[:1], Pair))
    more = joined[len(plain) :]
    assert [case.name for case in more[:2]] == ["conv-pair:64:1:0", "conv-pair:64:4:0"]
    assert len(more) == 4 * 9
    last = more[-1].work
    assert (last.channels, last.edge, last.images) == (512, 7, 32)
    assert set(cases.POLICIES) >= {dict(case.key)["family"] for case in joined}


@pytest.mark.parametrize(("rows", "cached"), [(5, 0), (3, 70)])
def test_attention_is_what_pytorch_and_numpy_compute(cases: Any, rows: int, cached: int) -> None:
    torch = pytest.importorskip("torch")
    work = cases.AttentionLayer.from_fields({"rows": rows, "cached": cached}, False)
    inputs = work.make_inputs(0)
    right = work.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})["out"]
    plan = il.build(work.build_graph(il.CPU), il.Schedule(4))
    assert np.allclose(il.ReferenceExecutor(plan).run(inputs)["out"], right, rtol=1e-9, atol=1e-12)
    tensors = {name: torch.tensor(np.ascontiguousarray(value)).double() for name, value in inputs.items()}
    assert np.allclose(work.run_dense(torch, tensors)["out"].numpy(), right, rtol=1e-9, atol=1e-12)
    tensors["w_qkv"] = torch.cat([tensors.pop(f"w_{name}") for name in "qkv"])
    assert np.allclose(work.run_dense(torch, tensors)["out"].numpy(), right, rtol=1e-9, atol=1e-12)


def test_each_column_of_attention_has_a_safe_plan(script: Any, cases: Any) -> None:
    (case,) = (case for case in cases.list_cases() if case.name == "attention:llama:4:2044")
    graph = case.work.build_graph(H200)
    found, left_out = script.list_variants(graph, H200, cases.POLICIES["attention"])
    policies = [str(policy) for policy in cases.POLICIES["attention"]]
    columns = [f"{name}, {policy}" for name in ("streams", "persistent", "megakernel") for policy in policies]
    assert list(found) == ["launches", *columns, "as planned"]
    assert left_out == {}
    assert {column: len(variants) for column, variants in found.items() if len(variants) > 1} == {"launches": 2}
    for column, variants in found.items():
        assert column in ("launches", "as planned") or f", {variants[0].schedule.policy}" in column
        plan = il.build(graph, variants[0].schedule)
        variants[0].executor.prove(il.verify(plan))


def test_the_megakernel_hands_off_by_semaphores_under_a_policy(script: Any) -> None:
    graph = Ladder(256).build_graph(H200)
    found, _ = script.list_variants(graph, H200, (RowSync(),))
    assert {variant.has_ll for variant in found["megakernel, RowSync()"]} == {False}
    assert [variant.has_ll for variant in found["as planned"]] == [True]
    options: list[Any] = []

    class OptionsRecorder(MegakernelExecutor):
        def __init__(self, plan: Any, options_of_run: Any = None) -> None:
            options.append(options_of_run)

    for column in ("megakernel, RowSync()", "as planned"):
        variant = found[column][0]
        script.Variant(variant.graph, H200, OptionsRecorder, variant.schedule, variant.has_ll).make_executor()
    assert [each.ll_tensors for each in options] == [(), None]


# ---------------------------------------------------------------- what is timed


class Problem(FakeProblem):
    """Stand-in for the tensors of a case; a way counts as wrong if its name holds ``fault``."""

    fault = "none"
    rest: ClassVar[Mapping[str, Any]] = {}
    outputs: ClassVar[Mapping[str, Any]] = {}
    bytes_us, flops_us = 30.0, 20.0

    def check(self, executor: Any) -> float:
        if self.fault in executor.column:
            raise ResultError(f"{executor.column} is wrong")
        return 2e-3

    def check_function(self, function: object, what: str, weights: object = None) -> float:
        if self.fault in what:
            raise ResultError(f"{what} is wrong")
        return 1e-3

    def make_rotation(self, run: Any, weights: object = None) -> Any:
        return run


def stand_in(script: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> dict[str, Any]:
    """Return the row of a small case whose ways are stand-ins: eager takes 100 us, and ours 80 us and more."""
    pytest.importorskip("torch")
    space = script.measure.__globals__
    problem = type("Faulty", (Problem,), {"fault": fault})

    def make_executor(variant: Any) -> Any:
        column = f"{variant.executor.name} {variant.schedule.policy}"
        return SimpleNamespace(column=column, build_launches=lambda tensors: [])

    def time_rounds(calls: Mapping[str, Any], repeats: int, runs: int, *, read_clocks: bool) -> Rounds:
        us = {name: 80.0 + n if ":" in name else 100.0 for n, name in enumerate(calls)}
        return Rounds({name: [value] for name, value in us.items()}, {name: [value + 5] for name, value in us.items()})

    for name, value in {
        "current_device": lambda: H200,
        "lock_autotuning": lambda: None,
        "BenchProblem": problem,
        "MODES": {"eager": None},
        "time_medians": lambda calls, repeats: None,
        "time_rounds": time_rounds,
    }.items():
        monkeypatch.setitem(space, name, value)
    monkeypatch.setattr(space["Variant"], "make_executor", make_executor)
    case = space["Case"]((("family", "mlp"), ("model", "toy"), ("rows", 32), ("cached", 0)), Ladder(256))
    row: dict[str, Any] = space["measure"](case)
    return row


def test_a_row_has_each_policy_of_each_executor(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = stand_in(script, monkeypatch, "none")
    ours = [f"{name}, {p}" for name in ("streams", "persistent", "megakernel") for p in (RowSync(), TileSync())]
    assert list(row["ways"]) == ["eager", "eager, transposed weights", "launches", *ours, "as planned"]
    assert row["left_out"] == {}
    assert (row["family"], row["rows"], row["ways"]["eager"]["median_us"]) == ("mlp", 32, 105.0)
    streams = row["ways"]["streams, RowSync()"]
    assert (streams["executor"], streams["policy"]) == ("semaphore_streams", "RowSync()")
    assert streams["median_us"] == streams["picked_us"] + 5
    assert streams["relative_error"] == 2e-3


def test_a_wrong_way_is_left_out_with_its_reason(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = stand_in(script, monkeypatch, "semaphore_streams RowSync")
    assert "streams, RowSync()" not in row["ways"]
    assert row["left_out"] == {"streams, RowSync()": "ResultError: semaphore_streams RowSync() is wrong"}
    assert "eager" not in stand_in(script, monkeypatch, "eager")["ways"]


# ---------------------------------------------------------------- tables


def make_row(family: str, model: str, rows: int, **ours: float) -> dict[str, Any]:
    """Return a row in which PyTorch takes 120 us."""
    own = {name: {"median_us": us, "picked_us": us, "executor": "any"} for name, us in ours.items()}
    ways = {"eager": {"median_us": 120.0, "picked_us": 120.0}, **own}
    return {"family": family, "model": model, "rows": rows, "cached": 0, "ways": ways}


def make_record() -> dict[str, Any]:
    ours = {"launches": 99.0, "streams, RowSync()": 110.0, "persistent, TileSync()": 100.0, "as planned": 80.0}
    rows = [make_row("mlp", "gpt3", 1792, **ours), make_row("conv-pair", "64", 1, launches=50.0)]
    return {"gpu": "some GPU", "date": "2026-01-01", "command": "python a.py", "rows": rows}


def test_tables_compare_with_the_published_times_of_a_named_gpu(tables: Any) -> None:
    text = tables.cusync_table(make_record())
    assert "`python a.py` repeats them" in text
    assert (
        "Table: MLPs.\n\n| model | rows | best of PyTorch | launches | streams, RowSync | persistent, TileSync |"
        in text
    )
    assert "| CuSync, V100: RowSync, TileSync | CuSync, A100: RowSync, TileSync, stream-K |" in text
    line = "| gpt3 | 1792 | 120.0 | 99.0 | 110.0 | 100.0 | 80.0 | 1.50 | 0.99 | 1.25 | 1.13, 1.11 | 1.30, 1.24, 1.05 |"
    assert line in text
    assert "| 64 | 1 | 120.0 | 50.0 |  |  |  |  | 1.24, 1.21 |" in text  # what did not run is empty


def test_the_summary_says_what_tiles_alone_and_the_megakernel_are_worth(tables: Any) -> None:
    head, _, mlps, pairs = tables.cusync_summary(make_record()).splitlines()
    assert head.startswith("| benchmark | cases | tile synchronisation alone | what the megakernel adds |")
    assert mlps.startswith("| MLPs | 1 | 0.99 (0.99 to 0.99) | 1.25 (1.25 to 1.25) | 1.50 (1.50 to 1.50) |")
    assert pairs.startswith("| pairs of convolutions | 1 |  |  |  | 1.09 (0.81 to 1.31) |")


def test_published_times_name_their_gpu_and_have_launches_and_a_policy(tables: Any) -> None:
    published = json.loads((BENCHMARKS / "rivals" / "cusync.json").read_text())
    assert set(published["gpus"]) == {row["gpu"] for row in published["rows"]}
    assert len(tables.read_published()) == len(published["rows"]) == 129
    for row in published["rows"]:
        assert "launches" in row["us"]
        assert any(name.endswith("Sync") for name in row["us"])
    assert tables.compute_published(("mlp", "gpt3", 1, 0), "A100") == {}
