"""``interlace bench`` of any workload with a stand-in for the GPU: what is timed, picked, kept and left for later."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interlace import workloads
from interlace.bench import gpu_lock, gpus
from interlace.bench import problem as problems
from interlace.bench import record as records
from interlace.bench import row as bench_rows
from interlace.bench import workload as measuring
from interlace.bench.clocks import Clocks
from interlace.bench.problem import BenchProblem
from interlace.bench.timing import Rounds
from interlace.bench.workload import CANDIDATES, list_variants
from interlace.cli import bench as cli_bench
from interlace.cli import bench_cases
from interlace.cli.machine import HostMachine
from interlace.core.devices import H200, DeviceSpec
from interlace.core.dtypes import fp32
from interlace.core.errors import ArgumentError, DeviceError, PlanError, ResultError
from interlace.deploy import can_overlap
from interlace.executors import Executor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.graph import Graph
from interlace.kernels.matmul import Activation
from interlace.orders.order_file import SavedOrder, write_order
from interlace.plan.orderings import Ordering
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.orders import Order
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import decode_tilings
from interlace.workloads import WORKLOADS, FeedForward, MoE, RaggedAttention, TwoCopies, Workload

from .commands import fail, succeed
from .gpus import A100, FakeProblem
from .toy import Ladder


@dataclass(frozen=True)
class Made:
    """An executor that stands for the variant that it was made from."""

    executor: str
    schedule: Schedule

    @property
    def policy(self) -> str:
        return str(self.schedule.policy)


class Gpu:
    """Times by function: 100 us for PyTorch, 80 for compiled PyTorch, and 70 us and more for executors.

    Attributes:
        rounds: the names of all functions that were timed together.
        orders: that executors were made with.
        tells_clocks: its driver tells clock and power.
    """

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.missing: set[str] = set()
        self.orders: set[Order] = set()
        self.tells_clocks = False

    def rounds_us(self, functions: Mapping[str, Any], repeats: int, calls: int, *, read_clocks: bool) -> Rounds:
        self.rounds.append(list(functions))
        picked = {name: self._us(name, function) for name, function in functions.items()}
        # In the rounds that are reported all is 5 us slower.
        clocks = Clocks(dict.fromkeys(functions, 1755.0), 699.0) if read_clocks and self.tells_clocks else None
        reported = {name: [us, us, us + 5.0, us + 9.0, us + 9.0] for name, us in picked.items()}
        return Rounds({name: [us] for name, us in picked.items()}, reported, clocks)

    def _us(self, name: str, function: object) -> float:
        if not isinstance(function, Made):
            return {"eager": 100.0, "compile": 80.0}.get(name.partition(",")[0], 90.0) + 3 * ("transposed" in name)
        at = [e.name for e in CANDIDATES].index(function.executor)
        return 70.0 + at + 2 * (function.policy == "TileSync()")

    def make(self, graph: Graph, device: DeviceSpec, executor: type[Executor], schedule: Schedule) -> Made:
        self.orders.add(schedule.order)
        if executor.name in self.missing:
            raise DeviceError("it has no compiler")
        return Made(executor.name, schedule)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpu:
    pytest.importorskip("triton")
    found = Gpu()
    torch = SimpleNamespace(
        compiler=SimpleNamespace(reset=lambda: None, disable=lambda function: function),
        compile=lambda function, dynamic, mode=None: function,
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workloads, "WORKLOADS", (*WORKLOADS, Ladder))
    monkeypatch.setattr(measuring, "BenchProblem", FakeProblem)
    monkeypatch.setattr(measuring, "open_device", lambda name: (torch, name))
    monkeypatch.setattr(measuring, "make_stream", lambda buffers, runs, device: None)
    monkeypatch.setattr(measuring, "time_rounds", found.rounds_us)
    monkeypatch.setattr(measuring, "compile_launches", lambda makers, pool: iter(()))
    monkeypatch.setattr(bench_rows, "make_executor", found.make)
    monkeypatch.setattr(cli_bench, "find_machine", lambda device: HostMachine(True, H200))
    monkeypatch.setattr(gpus, "open_device", lambda name: (host_with(2), name))
    monkeypatch.setattr(records, "_describe_origin", lambda measures: {"gpu": "a GPU", "sources": {"x": "1"}})
    return found


def host_with(count: int) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: count))


def report_job(job: int) -> tuple[int, str | None]:
    return job * job, os.environ.get("CUDA_VISIBLE_DEVICES")


def rows_of(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(Path(path).read_text())["rows"]
    return rows


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("gpu")
def test_bench_takes_a_workload_of_ones_own() -> None:
    shown = succeed("bench", "ladder", "--rows", 16, "--rows", 32, "--preset", "high", "--out", "r.json")
    record = json.loads(Path("r.json").read_text())
    assert record["command"] == "interlace bench ladder --preset high --rows 16 --rows 32"
    assert [(row["preset"], row["size"]) for row in record["rows"]] == [("high", 16), ("high", 32)]
    row = record["rows"][0]
    assert row["workload"] == {"name": "ladder", "width": 2048, "rows": 16, "residual": False, "dtype": "bf16"}
    graph = Ladder(2048).build_graph(H200)
    assert {*row["executors"], *row["left_out"]} == {e.name for e in CANDIDATES}
    assert set(row["executors"]) == {e.name for e in CANDIDATES if e.fallback_reason(graph, H200) is None}
    assert (row["layer"], row["stream"], row["target"], row["floor_us"]) == (None, None, None, 30.0)
    assert "ladder on NVIDIA H200, medians" in " ".join(shown.split())


@pytest.mark.usefixtures("gpu")
def test_the_fastest_is_picked_by_some_rounds_and_reported_from_others() -> None:
    succeed("bench", "ffn", "--preset", "relu", "--m", 16, "--out", "r.json")
    (row,) = rows_of("r.json")
    assert (row["library"], row["executor"], row["target"]) == ("compile", CANDIDATES[0].name, 1.17)
    assert row["libraries"]["compile"] == {"median_us": 85.0, "p20_us": 80.0, "p80_us": 89.0, "picked_us": 80.0}
    first = row["executors"][row["executor"]]
    assert row["ratio"] == row["libraries"]["compile"]["median_us"] / first["median_us"]
    for executor in CANDIDATES:
        if executor.name in row["executors"] and Ordering.LAUNCH not in executor.enforced_orderings:
            assert row["executors"][executor.name]["policy"] == "RowSync()"
    assert set(row["layer"]["executors"]) == set(row["executors"])
    assert decode_tilings(first["setting"])


def test_each_executor_is_in_a_model_with_its_fastest_setting_alone(gpu: Gpu) -> None:
    succeed("bench", "ffn", "--preset", "relu", "--m", 16, "--executor", "one_launch", "--executor", "one_launch")
    alone, layer = gpu.rounds
    libraries = [a + b for a in ("eager", "compile", "max-autotune") for b in ("", ", transposed weights")]
    assert alone[:6] == libraries
    graph = FeedForward.from_fields({"m": 16}, True, "relu").build_graph(H200)
    assert len(alone) - 6 == 2 * len(list(MegakernelExecutor.iter_likely(graph, H200)))
    assert layer == [*libraries, "one_launch", "one_launch, compiled around", "one_launch, whole layer"]


def test_without_compile_only_eager_pytorch_is_the_library(gpu: Gpu) -> None:
    succeed("bench", "two-copies", "--m", 256, "--no-compile", "--out", "r.json")
    assert gpu.rounds[0][:2] == ["eager", "eager, transposed weights"]
    (row,) = rows_of("r.json")
    assert set(row["libraries"]) == {"eager", "eager, transposed weights"}
    assert "one_launch" in row["executors"]


def test_clock_and_power_stand_beside_rows_that_arithmetic_limits(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("bench", "two-copies", "--m", 256, "--executor", "pdl", "--no-compile", "--out", "r.json")
    assert "SM MHz" not in succeed(*line)
    (row,) = rows_of("r.json")
    assert (row["compute_bound"], row["watts"], "sm_mhz" in row["executors"]["pdl"]) == (True, None, False)
    gpu.tells_clocks = True
    shown = " ".join(succeed(*line).split())
    assert "clock and power, where arithmetic is the limit" in shown
    assert "│ eager │ 1,755 │ pdl │ 1,755 │ 699 │" in shown
    (row,) = rows_of("r.json")
    assert (row["watts"], row["executors"]["pdl"]["sm_mhz"], row["libraries"]["eager"]["sm_mhz"]) == (699, 1755, 1755)
    monkeypatch.setattr(FakeProblem, "flops_us", 10.0)
    assert "SM MHz" not in succeed(*line)
    (row,) = rows_of("r.json")
    assert (row["compute_bound"], row["watts"]) == (False, None)


def test_what_pytorch_says_in_other_ways_is_a_library_too(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProblem, "alternatives", {"padded": "padded"})
    succeed("bench", "two-copies", "--m", 256, "--executor", "pdl", "--out", "r.json")
    ways = [mode + way for mode in ("eager", "compile", "max-autotune") for way in ("", ", padded")]
    assert gpu.rounds[0][:12] == [way + stored for way in ways for stored in ("", ", transposed weights")]


@pytest.mark.usefixtures("gpu")
def test_by_default_the_rows_of_the_record_are_measured_and_means_are_told() -> None:
    shown = succeed("bench", "ffn", "--executor", "pdl", "--no-compile", "--out", "r.json")
    measured = [(row["preset"], row["size"]) for row in rows_of("r.json")]
    assert measured == [(name, m) for name, kept in FeedForward.record.items() for m in kept.sizes]
    means = json.loads(Path("r.json").read_text())["means"]
    assert [(mean["preset"], mean["target"]) for mean in means] == [("relu", 1.04), ("gelu", 1.03)]
    assert "gelu, m 256 to 2048: geometric mean" in shown


@pytest.mark.usefixtures("gpu")
def test_fields_of_its_own_make_a_problem_without_a_preset() -> None:
    succeed("bench", "ffn", "--hidden", 512, "--ffn", 1024, "--no-gated", "--m", 16, "--out", "r.json")
    (row,) = rows_of("r.json")
    assert (row["preset"], row["target"], row["workload"]["hidden"]) == (None, None, 512)


def test_update_measures_only_what_the_record_lacks(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["two-matmuls", "--executor", "pdl", "--out", "r.json"]
    succeed("bench", *options, "--m", 1, "--m", 16)
    assert len(gpu.rounds) == 2
    succeed("bench", *options, "--update", "--m", 1, "--m", 128)
    assert len(gpu.rounds) == 3
    assert sorted(row["size"] for row in rows_of("r.json")) == [1, 16, 128]
    # Rows of other variants or of other sources are no rows of this record.
    succeed("bench", *options, "--update", "--m", 1, "--no-compile")
    assert [row["size"] for row in rows_of("r.json")] == [1]
    monkeypatch.setattr(records, "_describe_origin", lambda measures: {"gpu": "a GPU", "sources": {"x": "2"}})
    succeed("bench", *options, "--update", "--m", 16, "--no-compile")
    assert [row["size"] for row in rows_of("r.json")] == [16]


def test_a_row_that_would_not_fit_is_left(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    measure = cli_bench.measure

    def slow(*arguments: Any, **options: Any) -> Any:
        clock[0] += 10.0
        return measure(*arguments, **options)

    monkeypatch.setattr(cli_bench, "measure", slow)
    monkeypatch.setattr(cli_bench.time, "monotonic", lambda: clock[0])
    rows = ["two-matmuls", "--executor", "pdl", "--m", "1", "--m", "16", "--m", "128", "--out", "r.json"]
    succeed("bench", *rows, "--seconds", 29)
    assert [row["size"] for row in rows_of("r.json")] == [1, 128]
    succeed("bench", *rows, "--seconds", 29, "--update")
    assert [row["size"] for row in rows_of("r.json")] == [1, 16, 128]
    assert len(gpu.rounds) == 3


def test_an_executor_that_cannot_run_is_left_out_and_one_that_is_wrong_ends_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.missing = {"pdl"}
    succeed("bench", "two-matmuls", "--m", 16, "--out", "r.json")
    (row,) = rows_of("r.json")
    assert row["left_out"]["pdl"] == "it has no compiler"
    assert fail(1, "bench", "two-matmuls", "--executor", "pdl").endswith("pdl: it has no compiler")

    def raise_result_error(self: FakeProblem, executor: object) -> float:
        raise ResultError("executor 'pdl' is wrong")

    gpu.missing = set()
    monkeypatch.setattr(FakeProblem, "check", raise_result_error)
    assert fail(1, "bench", "two-matmuls", "--m", 16) == "error: executor 'pdl' is wrong"


@pytest.mark.usefixtures("gpu")
def test_a_row_that_fails_costs_no_other_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = cli_bench.measure

    def short_of_memory(preset: str | None, problem: Any, *arguments: Any, **options: Any) -> Any:
        if problem.m == 1:
            raise DeviceError("CUDA out of memory")
        return measure(preset, problem, *arguments, **options)

    monkeypatch.setattr(cli_bench, "measure", short_of_memory)
    rows = ["two-matmuls", "--executor", "pdl", "--m", "1", "--m", "16", "--out", "r.json"]
    assert fail(1, "bench", *rows).endswith("error: CUDA out of memory")
    assert [row["size"] for row in rows_of("r.json")] == [16]


def test_the_first_rows_are_of_each_preset_and_of_sizes_far_apart(gpu: Gpu) -> None:
    del gpu
    cases: list[Any] = [(name, m) for name, count in (("a", 8), ("b", 3)) for m in range(count)]
    order = bench_cases.interleave_cases(cases)
    assert sorted(order) == sorted(cases)
    assert order[:5] == [("a", 0), ("b", 0), ("a", 4), ("a", 2), ("b", 2)]
    assert [m for name, m in order if name == "a"] == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.usefixtures("gpu")
def test_jobs_go_to_several_gpus_one_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,8")
    results = dict(gpus.run_on_gpus(report_job, range(5), 2))
    assert {job: square for job, (square, _) in results.items()} == {0: 0, 1: 1, 2: 4, 3: 9, 4: 16}
    assert {device for _, device in results.values()} <= {"5", "7"}
    assert list(gpus.run_on_gpus(report_job, [3])) == [(3, (9, "5,7,8"))]
    with pytest.raises(ArgumentError, match="3 GPUs are asked for and 2 are here"):
        next(gpus.run_on_gpus(report_job, [0], 3))


def compiling() -> None:
    assert cli_bench._get_compilers(1).submit(abs, -1).result() == 1


def test_a_process_that_measures_ends_though_others_compile_for_it() -> None:
    measuring = get_context("spawn").Process(target=compiling)
    measuring.start()
    measuring.join(30)
    ended = measuring.exitcode
    measuring.kill()
    assert ended == 0


def in_turns(job: int) -> tuple[str | None, float, float]:
    """The GPU of a job, and when its turn began and ended."""
    with gpu_lock.hold_gpu(), gpu_lock.hold_gpu():
        begin = time.monotonic()
        time.sleep(0.02)
        return os.environ.get("CUDA_VISIBLE_DEVICES"), begin, time.monotonic()


@pytest.mark.usefixtures("gpu")
def test_processes_that_share_a_gpu_take_turns_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    taken = sorted(turn for _, turn in gpus.run_on_gpus(in_turns, range(12), gpus=1, share=2))
    assert {gpu for gpu, _, _ in taken} == {"5"}
    assert all(end <= begin for (_, _, end), (_, begin, _) in pairwise(taken))


def test_who_began_first_is_next() -> None:
    """Three jobs wait while a fourth has its turn; they began in the order of their numbers."""
    shared = gpu_lock.GpuLock(get_context("spawn"), 4)
    seats = [gpu_lock.GpuLockHandle(shared, place) for place in range(4)]
    for place in (3, 1, 2, 0):
        seats[place].begin_job()
    taken: list[int] = []

    def take(place: int) -> None:
        with seats[place]:
            taken.append(place)

    with seats[3]:
        threads = [Thread(target=take, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        while sum(number > 0 for number in shared._waiting) < 3:
            time.sleep(0.001)
        assert taken == []
    for thread in threads:
        thread.join()
    assert taken == [1, 2, 0]


def test_as_many_share_a_gpu_as_there_are_cpus_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.os, "cpu_count", lambda: 32)
    assert [gpus.count_processes(count, 4) for count in (1, 2, 8, 16)] == [8, 4, 1, 1]


@pytest.mark.parametrize("hooked", [True, False])
def test_what_torch_times_to_choose_is_timed_in_a_turn(hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by torch's own hook and, without one, by the method that all its timing goes through."""
    held: list[Any] = []

    class Lock:
        def __enter__(self) -> None:
            held.append("taken")

        def __exit__(self, *error: object) -> None:
            held.append("given back")

    timer = SimpleNamespace(benchmark_gpu=held.append)
    timing = SimpleNamespace(benchmarker=timer)
    if hooked:
        timing.set_gpu_benchmark_lock_context = held.append
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime", SimpleNamespace(benchmarking=timing))
    monkeypatch.setattr(gpu_lock, "_handle", None)
    gpu_lock._install_hook.cache_clear()
    gpu_lock.lock_autotuning()
    assert held == []
    monkeypatch.setattr(gpu_lock, "_handle", Lock())
    gpu_lock.lock_autotuning()
    gpu_lock.lock_autotuning()
    timer.benchmark_gpu("a kernel")
    gpu_lock._install_hook.cache_clear()
    assert held == ([gpu_lock.hold_gpu, "a kernel"] if hooked else ["taken", "a kernel", "given back"])


def test_torch_has_what_its_timing_is_held_by() -> None:
    place = Path(pytest.importorskip("torch").__file__).parent / "_inductor" / "runtime" / "benchmarking.py"
    text = place.read_text()
    assert "def set_gpu_benchmark_lock_context(" in text or "self.benchmark_gpu(" in text


# ---------------------------------------------------------------- what is timed


@pytest.mark.parametrize("kind", [*WORKLOADS, Ladder], ids=lambda kind: kind.name)
def test_every_variant_has_a_safe_plan_of_its_own(kind: type[Workload]) -> None:
    few = {field.name: 2 for field in fields(kind) if field.name == "layers"}
    found, left_out = list_variants(kind.from_fields({kind.size: 16, **few}, True), H200)
    assert {v.executor.name for v in found} | set(left_out) == {e.name for e in CANDIDATES}
    assert len({v.label for v in found}) == len(found)
    for executor in dict.fromkeys(v.executor for v in found):
        mine = [v for v in found if v.executor is executor]
        default = executor.select_default(mine[0].graph, H200)
        assert mine[0].schedule == replace(default, policy=mine[0].schedule.policy)
        last = mine[-1].schedule
        plan = build(mine[-1].graph, last)
        assert executor.prove(verify(plan)).plan.dispatch is executor.select_dispatch(plan.graph, H200, last)


def test_an_order_of_ones_own_is_timed_where_it_fits_the_grid() -> None:
    """A file has one grid, so tilings of others are left out, and with them executors that have no other."""
    workload = workloads.OneMatmul(512, 512, 512)
    order = SavedOrder(4, 4, (*range(8), *range(15, 7, -1)))
    found, left_out = list_variants(workload, H200, order=order)
    assert found
    for variant in found:
        plan = build(variant.graph, variant.schedule)
        assert (plan.graph.ops[0].grid, plan.items.tile[-1]) == ((4, 4), 8)
        assert variant.schedule.get_op_tiling("matmul").group == 0  # it is the order given that runs
    assert len({variant.label for variant in found}) == len(found)
    for name in {e.name for e in CANDIDATES} - {v.executor.name for v in found}:
        assert left_out[name]
    none, left_out = list_variants(workload, H200, order=SavedOrder(3, 4, tuple(range(12))))
    assert not none
    assert any("this order is of 3 x 4 tiles, and an op has" in reason for reason in left_out.values())


def test_bench_takes_an_order_by_name_or_from_a_file(gpu: Gpu) -> None:
    Path("mine.json").write_text(write_order(SavedOrder(4, 4, tuple(reversed(range(16))))))
    sizes = ("--m", 512, "--n", 512, "--k", 512)
    line = ("bench", "one-matmul", *sizes, "--order", "explicit:mine.json", "--out", "r.json")
    succeed(*line)
    record = json.loads(Path("r.json").read_text())
    assert gpu.orders == {SavedOrder(4, 4, tuple(reversed(range(16))))}
    assert "--order explicit:mine.json" in record["command"]
    assert record["options"]["order"]["tiles"] == [*reversed(range(16))]
    gpu.orders.clear()
    succeed(*line, "--update")
    assert not gpu.orders  # the row is kept
    Path("mine.json").write_text(write_order(SavedOrder(4, 4, tuple(range(16)))))
    succeed(*line, "--update")
    assert gpu.orders == {SavedOrder(4, 4, tuple(range(16)))}
    Path("mine.json").write_text(write_order(SavedOrder(3, 4, tuple(range(12)))))
    assert "this order is of 3 x 4 tiles" in fail(1, *line)


# ---------------------------------------------------------------- the problem, on a CPU


class Dense:
    """An executor that computes what PyTorch does, off by a factor."""

    name = "dense"

    def __init__(self, problem: BenchProblem, factor: float = 1.0) -> None:
        self._problem, self._factor = problem, factor
        self.plan = SimpleNamespace(graph=SimpleNamespace(intermediates=()))

    def run(self, tensors: Mapping[str, Any]) -> None:
        for name, value in self._problem.run_pytorch(tensors).items():
            tensors[name].copy_(value * self._factor)

    def synchronize(self) -> None:
        pass

    def get_intermediate(self, name: str) -> None:
        raise AssertionError("its graph has none")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workload], BenchProblem]:
    """A problem in the CPU's memory, for a GPU whose L2 holds 16 KiB."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(problems, "open_device", lambda name: (torch, torch.device("cpu")))
    small: DeviceSpec = replace(H200, l2_bytes=16 << 10)
    return lambda workload: BenchProblem(workload, small)


def test_what_a_workload_does_not_give_is_drawn_where_it_is_measured(
    on_cpu: Callable[[Workload], BenchProblem],
) -> None:
    torch = pytest.importorskip("torch")
    work = MoE.from_fields({"tokens": 16}, False)
    problem = on_cpu(work)
    assert set(work.make_host_inputs(0)) == {"logits"}
    np.testing.assert_array_equal(problem.rest["logits"].numpy(), work.make_logits(0))
    for name, fan_in in (("gate", work.hidden), ("down", work.ffn)):
        assert float(problem.weights[0][name].float().std()) == pytest.approx(fan_in**-0.5, rel=0.05)
    assert float(problem.rest["x"].float().std()) == pytest.approx(1.0, rel=0.1)
    again = on_cpu(work)
    assert all(torch.equal(again.weights[1][name], value) for name, value in problem.weights[1].items())
    ragged = RaggedAttention.from_fields({}, False)
    assert set(ragged.make_host_inputs(0)) == {"position", "rope", "shares", "first", "rows"}
    assert float(on_cpu(ragged).weights[0]["v_cache"].float().std()) == pytest.approx(1.0, rel=0.05)


def test_sets_of_weights_exceed_twice_the_cache_and_differ(on_cpu: Callable[[Workload], BenchProblem]) -> None:
    problem = on_cpu(Ladder(32, rows=8, dtype=fp32))
    assert problem.weight_bytes == 3 * 32 * 32 * 4
    assert len(problem.weights) == 2 + 2 * (16 << 10) // problem.weight_bytes == 4
    assert problem.runs % 4 == 0
    assert problem.runs >= 16
    assert set(problem.rest) == {"x"}
    first, second = (each["w1"] for each in problem.weights[:2])
    assert (second[1:] == first[:-1]).all()
    buffer = problem.buffers[1]
    assert second.data_ptr() - buffer.data_ptr() == 32 * 32 * 4
    (turned, *_) = problem.transpose_weights()
    assert turned["w0"].stride() == (1, 32)
    assert (turned["w0"] == problem.weights[0]["w0"]).all()


def test_what_a_run_does_not_read_of_its_weights_is_no_part_of_the_floor(
    on_cpu: Callable[[Workload], BenchProblem],
) -> None:
    work = RaggedAttention.from_fields({}, gpu=False)
    problem = on_cpu(work)
    share = sum(work.cached_lengths) / (work.batch * work.capacity)
    assert 0.1 < share < 0.9
    assert [len(read) for read in problem.read_buffers] == [int(len(each) * share) for each in problem.buffers]
    assert problem.bytes_us == pytest.approx(problem.weight_bytes * share / H200.dram_bytes_per_s * 1e6)


def test_every_run_takes_the_next_set(on_cpu: Callable[[Workload], BenchProblem]) -> None:
    problem = on_cpu(Ladder(32, rows=8, dtype=fp32))
    seen: list[int] = []
    problem.make_rotation(lambda tensors: seen.append(tensors["w0"].data_ptr()))()
    assert len(seen) == problem.runs
    assert seen[:5] == [each["w0"].data_ptr() for each in (*problem.weights, problem.weights[0])]


@pytest.mark.parametrize(
    "workload", [FeedForward(32, 64, 8), Ladder(32, rows=8), TwoCopies(64, 64)], ids=lambda w: w.name
)
def test_results_are_judged_by_pytorchs_own_error(
    on_cpu: Callable[[Workload], BenchProblem], workload: Workload
) -> None:
    problem = on_cpu(workload)
    right: Any = Dense(problem)
    assert problem.check(right) == problem.pytorch_error <= 0.01
    wrong: Any = Dense(problem, 1.02)
    with pytest.raises(ResultError, match=r"executor 'dense' is wrong: relative error 2\..e-02, where PyTorch has"):
        problem.check(wrong)
    lost: Any = Dense(problem, float("nan"))
    with pytest.raises(ResultError, match="relative error nan"):
        problem.check(lost)


def test_layers_run_one_behind_the_other(on_cpu: Callable[[Workload], BenchProblem]) -> None:
    problem = on_cpu(FeedForward(32, 64, 8))
    right: Any = Dense(problem)
    problem.check_layers(problem.make_layer(problem.make_run(right)), right)
    wrong: Any = Dense(problem, 1.2)
    with pytest.raises(ResultError):
        problem.check_layers(problem.make_layer(problem.make_run(wrong)), wrong)
    ours = problem.make_layer_rotation(problem.make_layer(problem.make_run(right)))()
    assert (ours == problem.make_layer_rotation(problem.make_layer(problem.run_pytorch))()).all()
    assert on_cpu(Ladder(32, rows=8)).pytorch_layers_error is None


def test_what_stands_around_an_executor_is_compiled_beside_it(
    on_cpu: Callable[[Workload], BenchProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    problem = on_cpu(FeedForward(32, 64, 8))
    parts: list[set[str]] = []

    def backend(module: Any, inputs: Any) -> Any:
        parts.append({node.target.__name__ for node in module.graph.nodes if node.op == "call_function"})
        return module

    compiler = SimpleNamespace(disable=torch.compiler.disable)
    through = SimpleNamespace(compiler=compiler, compile=partial(torch.compile, backend=backend))
    monkeypatch.setattr(measuring, "open_device", lambda name: (through, name))
    made: Any = Dense(problem)
    plain, around = measuring._build_layers(problem, "dense", made, True).values()
    assert (around() == plain()).all()
    assert parts == [{"rms_norm"}, {"add"}]
    assert len(measuring._build_layers(problem, "dense", made, False)) == 1


def test_a_whole_layer_is_as_pytorchs(
    on_cpu: Callable[[Workload], BenchProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(measuring, "open_device", lambda name: (torch, name))
    problem = on_cpu(FeedForward(32, 64, 8, gated=True, activation=Activation.SILU))
    layered = problem.workload.layer_workload
    assert layered == replace(problem.workload, norm=1e-5)
    assert layered.layer_workload is None
    graph = layered.build_graph(H200)

    class Layered(Dense):
        def run(self, tensors: Any) -> None:
            assert {*graph.inputs, *graph.outputs} <= {*tensors}
            assert tensors["x"].data_ptr() != tensors["out"].data_ptr()
            tensors["out"].copy_(layered.run_dense(torch, tensors)["out"])

    alone: Any = Dense(problem)
    made: Any = Layered(problem)
    made.plan = SimpleNamespace(graph=graph)
    ways = measuring._build_layers(problem, "dense", alone, False, made)
    assert [*ways] == ["dense", "dense, whole layer"]
    one, whole = (way() for way in ways.values())
    assert (one == whole).all()


def test_what_pytorch_compiles_is_traced_whole(on_cpu: Callable[[Workload], BenchProblem]) -> None:
    torch = pytest.importorskip("torch")
    problem = on_cpu(FeedForward(32, 64, 8))
    options = {"backend": "eager", "fullgraph": True, "dynamic": False}
    alone, layer = (torch.compile(f, **options) for f in (problem.run_pytorch, problem.make_layer(problem.run_pytorch)))
    seen: list[Any] = []
    for weights in (problem.weights, problem.transpose_weights()):
        problem.make_rotation(lambda tensors: seen.append(alone(tensors)["out"]), weights)()
        eager = problem.make_layer_rotation(problem.make_layer(problem.run_pytorch), weights)()
        assert (problem.make_layer_rotation(layer, weights)() == eager).all()
    assert (seen[0] == problem.run_pytorch({**problem.rest, **problem.weights[0]})["out"]).all()


def test_what_the_system_raises_is_one_line() -> None:
    pytest.importorskip("triton")
    lost = pytest.raises(DeviceError, match=r"^ladder of rows 32 cannot be run on NVIDIA H200: RuntimeError: CUDA")
    with lost, problems.translate_errors(Ladder(64), H200):
        raise RuntimeError("CUDA out of memory\nmore")
    with pytest.raises(PlanError, match="as it is"), problems.translate_errors(Ladder(64), H200):
        raise PlanError("as it is")


def test_runs_overlap_as_executors_and_gpus_can() -> None:
    graph = FeedForward(4096, 14336, 16).build_graph(H200)
    for executor in CANDIDATES:
        plan = build(graph, executor.select_default(graph, H200))
        assert plan.dispatch is executor.select_dispatch(plan.graph, H200)
        assert can_overlap(executor, plan, H200) is (plan.dispatch in executor.overlapping_dispatches)
        assert not can_overlap(executor, plan, A100)
