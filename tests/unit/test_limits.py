"""Limits: work that is too large is refused before it begins, and free work costs nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import interlace as il
from interlace.cli import limits
from interlace.cli.machine import HostMachine, find_machine
from interlace.cli.names import Device
from interlace.core import memory
from interlace.core.errors import TooManyItemsError
from interlace.executors import reference
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.executors.serial import SerialExecutor
from interlace.graph.dependencies import Dependencies
from interlace.planner.build import MAX_ITEMS, check_item_count
from interlace.planner.predict import predict
from interlace.policies.splits import Split
from interlace.sim.modes import PERSISTENT, Queues
from interlace.sim.modes import SERIAL as OP_BY_OP
from interlace.workloads import FeedForward, TwoCopies

from .commands import SMALL, fail, succeed

GRAPH = il.workloads.ffn(32, il.workloads.FFNShape(64, 128, il.Activation.RELU, False))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of any size may be made."""

    def fail_on_work(*_: object) -> None:
        pytest.fail("refused only after work was done")

    monkeypatch.setattr(FeedForward, "make_inputs", fail_on_work)
    monkeypatch.setattr(TwoCopies, "make_inputs", fail_on_work)
    monkeypatch.setattr(Dependencies, "__init__", fail_on_work)


@pytest.mark.parametrize("command", [["run"], ["trace", "--out", "{0}"], ["plan", "--out", "{0}"]])
@pytest.mark.parametrize(
    "sizes",
    [
        ["ffn", "--m", "1000000000"],
        ["ffn", "--hidden", "1000000000", "--ffn", "1000000000"],
        ["two-copies", "--m", "4096", "--n", "4096", "--tile", "1x1"],
        ["ffn", "--m", "65536", "--hidden", "64", "--ffn", "1048576", "--split", "split-k:9999"],
    ],
)
def test_plans_of_too_many_items_are_refused_before_the_work(
    tmp_path: Path, no_work: None, command: list[str], sizes: list[str]
) -> None:
    path = tmp_path / "x.json"
    message = fail(2, command[0], *sizes, *(c.format(path) for c in command[1:]), "--device", "cpu")
    assert f"and a plan holds {MAX_ITEMS:,}; use larger tiles, a smaller problem" in message
    assert message.endswith("(--tile, --split, or the sizes)")
    assert not path.exists()


@pytest.mark.parametrize("command", [["run"], ["trace", "--out", "{0}"]])
def test_runs_that_do_not_fit_in_memory_are_refused_before_the_work(
    tmp_path: Path, no_work: None, command: list[str]
) -> None:
    sizes = ["--device", "cpu", "--hidden", "1000000", "--ffn", "1000000"]
    message = fail(2, command[0], "ffn", *(c.format(tmp_path / "x") for c in command[1:]), *sizes)
    assert message.startswith("error: inputs, intermediates and results take ")
    assert message.endswith("free; use a smaller problem")


@pytest.mark.parametrize(
    ("chosen", "compares", "needed"),
    [
        # x 2,048 and weights 8,192 each, hidden 4,096, out 2,048 elements: inputs 18,432, all 24,576.
        ([ReferenceExecutor], False, 4 * 18_432 + 8 * 24_576),
        ([ReferenceExecutor, RandomReferenceExecutor], True, 4 * 18_432 + 8 * 2_048 + 2 * 8 * 24_576),
        ([SerialExecutor], True, 4 * 18_432 + 8 * 2_048 + 8 * (18_432 + 3 * 4_096 + 2_048)),
    ],
)
def test_memory_is_counted_to_the_byte(
    monkeypatch: pytest.MonkeyPatch, chosen: list, compares: bool, needed: int
) -> None:
    machine = find_machine(Device.CPU)
    monkeypatch.setattr(limits, "get_available_bytes", lambda: needed)
    limits.check_memory(GRAPH, chosen, machine, compares=compares)
    monkeypatch.setattr(limits, "get_available_bytes", lambda: needed - 1)
    with pytest.raises(limits.BadInput, match="free; use a smaller problem"):
        limits.check_memory(GRAPH, chosen, machine, compares=compares)


def test_on_a_gpu_its_memory_and_that_of_the_host_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 8 * (18_432 + 3 * 4_096 + 2_048) + 2 * 24_576
    cuda = SimpleNamespace(mem_get_info=lambda device: (free, 1 << 40))
    machine = HostMachine(True, il.H200, SimpleNamespace(cuda=cuda), "cuda:0")
    monkeypatch.setattr(limits, "get_available_bytes", lambda: 4 * 18_432 + 8 * 2_048)
    limits.check_memory(GRAPH, [SerialExecutor], machine, compares=True)
    with pytest.raises(limits.BadInput, match="this machine has"):
        limits.check_memory(GRAPH, [SerialExecutor, ReferenceExecutor], machine, compares=True)
    free -= 1
    with pytest.raises(limits.BadInput, match="NVIDIA H200 has"):
        limits.check_memory(GRAPH, [SerialExecutor], machine, compares=True)


def test_available_memory_is_the_least_of_the_limits_that_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 20 < memory.get_available_bytes() < 1 << 60
    for free, group, space, least in ((5, None, None, 5), (5, 3, None, 3), (5, 3, 2, 2), (None, None, None, 1 << 60)):
        monkeypatch.setattr(memory, "_read_available_memory", lambda value=free: value)
        monkeypatch.setattr(memory, "_read_cgroup_limit", lambda value=group: value)
        monkeypatch.setattr(memory, "_read_address_space_limit", lambda value=space: value)
        assert memory.get_available_bytes() == least or (least == 1 << 60 and memory.get_available_bytes() > least)


@pytest.mark.parametrize("split", [il.WholeTiles(), il.SplitK(3), il.SplitK(99), il.StreamK(5), il.StreamK(10**9)])
def test_items_are_counted_before_they_are_made(split: Split) -> None:
    for tiles, chunks in ((1, 1), (4, 6), (7, 5)):
        items = split.list_items(tiles, chunks)
        assert len(items[0]) <= split.bound_items(tiles, chunks) <= len(items[0]) + tiles
        ends = np.cumsum(items[2] - items[1])
        assert ends[-1] == tiles * chunks


def test_parts_beyond_the_chunks_are_one_chunk_each_and_cost_nothing() -> None:
    for split in (il.SplitK(999_999_999), il.StreamK(999_999_999)):
        assert len(split.compute_cuts(4, 6)) <= 4 * 6
        tile, lo, hi = split.list_items(4, 6)
        assert len(tile) == 24
        assert (hi - lo == 1).all()


def test_the_largest_plan_is_of_so_many_items() -> None:
    def copies(rows: int) -> il.Graph:
        return il.workloads.two_copies(rows, 1024, il.bf16, (1, 1))

    schedule = il.Schedule(8)
    check_item_count(copies(MAX_ITEMS // 2048), schedule)
    with pytest.raises(TooManyItemsError, match=r"'first' of 2,049 x 1,024 tiles, and a plan holds 4,194,304"):
        check_item_count(copies(MAX_ITEMS // 2048 + 1), schedule)
    with pytest.raises(TooManyItemsError):
        il.build(copies(MAX_ITEMS // 2048 + 1), schedule)


# ---------------------------------------------------------------- workers beyond the items


@pytest.mark.parametrize("dispatch", [il.Dispatch.TICKET, il.Dispatch.STATIC])
def test_workers_beyond_the_items_are_not_walked(dispatch: il.Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = reference.ReferenceExecutor._run_worker

    def record_worker(executor: il.ReferenceExecutor, worker: int) -> object:
        made.append(worker)
        return whole(executor, worker)

    monkeypatch.setattr(reference.ReferenceExecutor, "_run_worker", record_worker)
    plan = il.build(GRAPH, il.Schedule(2_000_000, dispatch=dispatch))
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(GRAPH.tensor(name).shape) for name in GRAPH.inputs}
    for seed in (None, 1):
        made.clear()
        executor = il.ReferenceExecutor(plan, seed=seed)
        out = executor.run(inputs)["out"]
        assert made == list(range(len(plan.items)))
        right = np.maximum(inputs["x"] @ inputs["w_up"].T, 0) @ inputs["w_down"].T
        assert np.linalg.norm(out - right) < 1e-12 * np.linalg.norm(right)
    assert plan.workers == 2_000_000


def test_the_simulated_machine_has_the_workers_that_can_have_an_item() -> None:
    n = len(il.build(GRAPH, il.Schedule(1)).items)
    assert n == 3
    for workers, busy in ((1, 1), (2, 2), (3, 3), (99, 3), (2_000_000, 3)):
        for dispatch in il.Dispatch:
            plan = il.build(GRAPH, il.Schedule(workers, dispatch=dispatch))
            assert Queues.from_plan(plan, PERSISTENT).workers == Queues.from_plan(plan, OP_BY_OP).workers == busy


def test_idle_workers_change_no_prediction() -> None:
    found = [predict(il.build(GRAPH, il.Schedule(workers)), il.H200).trace for workers in (3, 2_000_000)]
    assert found[0].span_ns == found[1].span_ns
    assert found[1].worker.max() < 3


@pytest.mark.parametrize("options", [[], ["--dispatch", "static"], ["--dispatch", "static-balanced"]])
def test_run_and_verify_take_a_plan_of_millions_of_workers(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "plan.json"
    many = [*SMALL, "--workers", "2000000", *options]
    succeed("plan", "ffn", *many, "--out", path)
    succeed("verify", path)
    assert "2,000,000 workers" in " ".join(succeed("run", "ffn", *many).split())
