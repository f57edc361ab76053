"""Declarations of executors, and plans that are made for one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import interlace as il
from interlace.core.devices import DeviceSpec
from interlace.core.errors import GraphError, InterlaceError, PlanError
from interlace.executors import EXECUTORS, SINGLE_LAUNCH_EXECUTORS, DeviceExecutor, Executor
from interlace.executors.persistent import PersistentStaticExecutor, PersistentTicketExecutor
from interlace.executors.reference import RandomReferenceExecutor
from interlace.kernels.bodies import BodyKind
from interlace.kernels.matmul import MATMUL
from interlace.loops import as_op, library
from interlace.megakernel import parts
from interlace.models.llama import LLAMAS, build_decode_graph
from interlace.sim.modes import PERSISTENT, SEMAPHORE_STREAMS, SERIAL, make_megakernel_mode, slow_to_plain_bodies
from interlace.workloads import one_matmul, two_copies, two_matmuls

from .gpus import A100

NAMES = (
    "reference reference-random serial cuda_graph pdl streams semaphore_streams persistent-static persistent-ticket "
    "one_launch"
)
RELU = il.workloads.FFNShape(4096, 14336, il.Activation.RELU, False)


def loops() -> il.Graph:
    """A graph whose op has a reference and CUDA C++, for a launch of its own and for one with others."""
    x, y = (il.Tensor(name, (1024,), il.fp32) for name in "xy")
    return il.Graph("loops", (x, y), (as_op("copy", library.copy_1d(), {"x": x, "y": y}),), ("x",), ("y",))


def test_executors_stand_in_one_tuple_each_with_a_name_a_title_and_words() -> None:
    assert [executor.name for executor in EXECUTORS] == NAMES.split()
    assert len({executor.title for executor in EXECUTORS} | {executor.description for executor in EXECUTORS}) == 20
    for executor in EXECUTORS:
        assert executor.enforced_orderings
        assert executor.dispatches
        assert executor.body_kinds
    assert [executor.name for executor in SINGLE_LAUNCH_EXECUTORS] == ["one_launch", "persistent-ticket"]
    assert all(executor.kernel for executor in SINGLE_LAUNCH_EXECUTORS)


def test_a_kernel_holds_its_bodies_by_kind_and_the_executor_says_which_it_takes() -> None:
    assert set(MATMUL.bodies) == {BodyKind.REFERENCE, BodyKind.TRITON, BodyKind.MEGAKERNEL}
    (matmul,) = one_matmul(64, 64, 64).ops
    (copy,) = loops().ops
    taken = {executor.name: (executor.find_body_kind(matmul), executor.find_body_kind(copy)) for executor in EXECUTORS}
    reference, triton, cuda = BodyKind.REFERENCE, BodyKind.TRITON, BodyKind.CUDA
    assert taken == {
        **dict.fromkeys(("reference", "reference-random"), (reference, reference)),
        **dict.fromkeys(("serial", "cuda_graph", "pdl", "streams", "semaphore_streams"), (triton, cuda)),
        **dict.fromkeys(("persistent-static", "persistent-ticket"), (triton, None)),
        "one_launch": (BodyKind.MEGAKERNEL, BodyKind.MEGAKERNEL),
    }


def test_of_several_bodies_an_executor_takes_the_kind_that_it_names_first() -> None:
    def never(*_: object) -> il.TritonBody:
        raise AssertionError("asked for a body that is not needed yet")

    op = il.Kernel("both", triton=never, cuda=never).make_op("both", (1,), {}, {})  # type: ignore[arg-type]
    assert il.SerialExecutor.body_kinds == (BodyKind.TRITON, BodyKind.CUDA)
    assert il.SerialExecutor.find_body_kind(op) is BodyKind.TRITON


def obstacles(graph: il.Graph, device: DeviceSpec) -> dict[str, str]:
    said = {executor.name: executor.fallback_reason(graph, device) for executor in EXECUTORS}
    return {name: reason for name, reason in said.items() if reason is not None}


def test_an_obstacle_is_the_reason_why_an_executor_cannot_run_a_graph_on_a_device() -> None:
    assert obstacles(two_matmuls(64, 256, 512, 256), il.H200) == {}
    on_cpu = obstacles(two_matmuls(64, 256, 512, 256), il.CPU)
    assert set(on_cpu) == {"cuda_graph", "pdl", "one_launch"}
    assert on_cpu["pdl"] == "the pdl executor needs a CUDA GPU, and 'cpu' is none"
    for older in obstacles(two_matmuls(64, 256, 512, 256), A100).values():
        assert older.startswith("NVIDIA A100-SXM4-80GB has compute capability 8.0, this executor needs 9.0")
    in_fp32 = obstacles(two_matmuls(64, 256, 512, 256, il.fp32), il.H200)
    assert set(in_fp32) == {"one_launch"}
    assert all("bf16 and fp16" in reason for reason in in_fp32.values())
    (rows,) = obstacles(two_matmuls(64, 256, 516, 256), il.H200).values()
    assert "bulk loads need rows of a multiple of 8 elements" in rows
    assert obstacles(two_copies(64, 64), il.H200) == {}
    assert set(obstacles(loops(), il.H200)) == {"persistent-static", "persistent-ticket"}
    assert "which the Triton interpreter does not run" in obstacles(loops(), il.CPU)["serial"]
    bare = il.Graph("bare", (), (il.Kernel("none").make_op("none", (1,), {}, {}),), (), ())
    assert set(obstacles(bare, il.H200)) == set(NAMES.split())


def test_tiles_that_make_no_launch_are_told_with_their_bytes_and_registers() -> None:
    def check(executor: type[Executor], tile: il.MatmulTile, device: DeviceSpec = il.H200) -> None:
        executor.check_tiles(one_matmul(1024, 1024, 1024, tile=tile), device)

    deep = il.MatmulTile(128, 128, 64, 8, 8)  # 8 stages of 64 x (128 + 128) x 2 bytes
    with pytest.raises(InterlaceError, match="8 stages take 262144 bytes of shared memory, and NVIDIA H200 has 232448"):
        check(il.SerialExecutor, deep)
    wide = il.MatmulTile(128, 256, 64, 4, 4)
    with pytest.raises(InterlaceError, match="sums of 256 registers per thread"):
        check(il.PersistentExecutor, wide)
    fits = il.MatmulTile(128, 128, 64, 4, 8)  # 128 KiB
    check(il.PersistentExecutor, fits, A100)
    two = il.MatmulTile(128, 256, 128, 3, 8)  # a stage of 96 KiB
    told = "232448 bytes of shared memory hold 2 stages of these tiles, too few for loads to run ahead"
    with pytest.raises(InterlaceError, match=told):
        check(il.MegakernelExecutor, two)
    check(il.ReferenceExecutor, deep, il.CPU)


def test_executors_tell_how_the_simulated_machine_models_them() -> None:
    graph = two_matmuls(64, 256, 512, 256, first=il.MatmulTile(64, 64, 64), second=il.MatmulTile(64, 64, 64))
    modes = {executor.name: executor.build_mode(graph, il.H200) for executor in EXECUTORS}
    assert modes.pop("semaphore_streams") == slow_to_plain_bodies(SEMAPHORE_STREAMS)
    assert {modes.pop(name) for name in ("serial", "cuda_graph", "pdl", "streams")} == {slow_to_plain_bodies(SERIAL)}
    assert {modes.pop(name) for name in ("reference", "reference-random")} == {PERSISTENT}
    stage = 2 * 64 * 64 * 2  # of its own ring, with three barriers; beside it scratch, messages and a few barriers
    beside = 64 * (2 * 64 + 16) + 8 + 4 * (2 * 8 + 80)
    launch = modes.pop("one_launch")
    assert launch.ll_hand_offs is not None
    ring = (il.H200.smem_bytes - beside) // (stage + 24) * stage
    weights = frozenset({"a", "b"})
    assert launch == make_megakernel_mode(ring, launch.ll_hand_offs, weights, launch.neighbours)
    assert {*modes.values()} == {slow_to_plain_bodies(PERSISTENT)}


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda cls: cls.name)
def test_a_plan_of_another_dispatch_is_refused(executor: type[Executor]) -> None:
    graph = two_matmuls(64, 128, 128, 128)
    for dispatch in il.Dispatch:
        plan = il.build(graph, il.Schedule(4, dispatch))
        if dispatch in executor.dispatches:
            assert executor.prove(plan).plan is plan
        else:
            with pytest.raises(PlanError, match=f"the {executor.name} executor runs plans with .* dispatch; plan with"):
                executor.prove(plan)


# ---------------------------------------------------------------- plans for an executor


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda cls: cls.name)
@pytest.mark.parametrize("m", [1, 100, 1024])
def test_a_planned_graph_is_one_that_the_executor_runs(executor: type[Executor], m: int) -> None:
    graph = il.workloads.ffn(m, RELU)
    plan = il.autoplan(graph, il.H200, executor)
    assert executor.prove(plan).plan.workers == il.H200.sms
    executor.check_tiles(plan.graph, il.H200)
    assert (plan.graph.tensors, plan.graph.inputs, plan.graph.outputs) == (graph.tensors, graph.inputs, graph.outputs)
    shared = executor is il.MegakernelExecutor and m == 100  # a product is split
    assert plan.dispatch is (il.Dispatch.STATIC if shared else executor.dispatches[0])


def test_a_planned_graph_is_tiled_for_the_executor_and_the_device() -> None:
    graph = il.workloads.ffn(1024, il.workloads.MODELS["llama3-8b"])
    tiles = {
        executor: tuple(il.autoplan(graph, device, executor).graph.ops[0].param(p) for p in ("BM", "BN", "STAGES"))
        for device, executor in ((il.H200, il.MegakernelExecutor), (A100, PersistentTicketExecutor))
    }
    assert tiles == {il.MegakernelExecutor: (128, 128, 3), PersistentTicketExecutor: (128, 128, 3)}
    assert il.autoplan(graph, il.H200, PersistentTicketExecutor).graph.ops[0].param("STAGES") == 4


def test_without_an_executor_a_plan_is_for_the_fastest_single_launch_that_runs_it() -> None:
    graph = two_matmuls(64, 256, 512, 256)
    assert il.autoplan(graph, il.H200).to_json() == il.autoplan(graph, il.H200, il.MegakernelExecutor).to_json()
    older = il.autoplan(graph, A100)
    assert older.to_json() == il.autoplan(graph, A100, PersistentTicketExecutor).to_json()
    assert older.workers == 108
    assert il.autoplan(loops(), il.H200).dispatch is il.Dispatch.TICKET
    with pytest.raises(PlanError, match=r"no executor runs graph 'loops' as one launch on NVIDIA A100.*: one_launch: "):
        il.autoplan(loops(), A100)


def test_what_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(GraphError, match=r"op 'copy': kernel 'copy_1d-.*' has no Triton body"):
        il.autoplan(loops(), il.H200, il.PersistentExecutor)


def test_choices_that_are_given_stand() -> None:
    graph = two_matmuls(256, 256, 512, 256)
    plan = il.autoplan(
        graph, il.H200, il.PersistentExecutor, workers=7, policy=il.RowSync(), dispatch=il.Dispatch.STATIC
    )
    assert (plan.workers, plan.policy, plan.dispatch) == (7, "RowSync()", il.Dispatch.STATIC)


def test_kernels_without_rules_stay_as_they_are_tiled() -> None:
    graph = two_copies(256, 256, tile=(32, 128))
    assert il.autoplan(graph, il.H200, PersistentStaticExecutor).graph == graph
    assert il.autoplan(graph, il.CPU, RandomReferenceExecutor).graph == graph


@pytest.mark.parametrize("executor", [PersistentStaticExecutor, PersistentTicketExecutor, il.MegakernelExecutor])
def test_a_search_keeps_to_tiles_and_dispatch_of_the_executor(executor: type[DeviceExecutor]) -> None:
    graph = two_matmuls(64, 512, 2048, 512)
    plan = il.autoplan(graph, il.H200, executor, search=True)
    assert plan.dispatch in executor.dispatches
    assert plan.graph in executor.iter_tilings(graph, il.H200)
    assert executor.prove(plan)


def test_tilings_are_unlike_and_begin_with_the_rules_own() -> None:
    graph = il.workloads.ffn(64, il.workloads.MODELS["llama3-8b"])
    for executor in SINGLE_LAUNCH_EXECUTORS:
        tilings = executor.iter_tilings(graph, il.H200)
        assert len(tilings) >= 3
        assert len({tuple((op.grid, op.reduction) for op in tiled.ops) for tiled in tilings}) == len(tilings)
        assert tilings[0] == il.autoplan(graph, il.H200, executor).graph


def test_settings_of_many_ops_come_one_by_one() -> None:
    graph = build_decode_graph(LLAMAS["smollm2-135m"], 1, 64, il.H200)
    matmuls = [op.name for op in graph.ops if op.kernel == "matmul"]
    several = [*islice(il.PdlExecutor.iter_schedules(graph, il.H200), 3)]  # of more than anybody could draw
    assert several[0] == il.PdlExecutor.select_default(graph, il.H200)
    assert [[*schedule.tiles] for schedule in several] == [matmuls] * 3
    assert len({*several}) == 3


def test_the_package_of_plans_is_not_hidden() -> None:
    assert re.fullmatch(r"<module 'interlace\.plan' .*>", repr(il.plan))  # type: ignore[attr-defined]


# ---------------------------------------------------------------- what an executor and a policy cost to add

TOY_EXECUTOR = """
import sys
from interlace import executors
from interlace.executors.serial import SerialExecutor


class ToyExecutor(SerialExecutor):
    name = title = "toy"
    what = "serial by another name"


executors.EXECUTORS = (*executors.EXECUTORS, ToyExecutor)  # the one line beside its own file
from interlace.cli import main

sys.argv[1:] = ["explain", "two-matmuls", "--device", "cuda", "--executor", "toy", "--executor", "serial"]
main()
"""


def test_an_executor_costs_its_own_file_and_a_line() -> None:
    wide = {**os.environ, "COLUMNS": "120"}
    told = subprocess.run([sys.executable, "-c", TOY_EXECUTOR], capture_output=True, text=True, check=False, env=wide)
    assert told.returncode == 0, told.stderr
    assert re.search(r"│ fastest executor +│ toy, serial +│", told.stdout), told.stdout


class DiagonalSync(il.SyncPolicy):
    """Tiles on a diagonal share a semaphore."""

    def assign_semaphores(self, coords: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
        return coords.sum(1)


def test_a_policy_costs_a_class_of_the_users_own() -> None:
    graph = two_matmuls(256, 256, 256, 256)
    plan = il.build(graph, il.Schedule(8, policy=DiagonalSync()))
    assert plan.semaphores == 4 + 4 - 1
    assert il.verify(plan).edges_by_wait > 0


def test_an_op_declares_itself_to_the_megakernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning, predicting and lowering a graph ask its ops for their bodies and whole tiles one time each."""
    graph = two_matmuls(64, 256, 512, 256)
    asked: list[str] = []
    build = parts.build_megakernel_body
    monkeypatch.setattr(parts, "build_megakernel_body", lambda op, *more: asked.append(op.name) or build(op, *more))
    executor = il.MegakernelExecutor
    executor.check(graph, il.H200)
    executor.check_tiles(graph, il.H200)
    executor.build_mode(graph, il.H200)
    executor.select_dispatch(graph, il.H200)
    run = executor(il.build(graph, il.Schedule(4)), il.RunOptions("meta"))
    assert asked == [op.name for op in graph.ops]
    assert run.lowered.source is run.composition
