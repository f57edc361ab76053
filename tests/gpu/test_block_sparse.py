"""Block-sparse products on a GPU: any table on every executor, as right as PyTorch, run after run."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads import BlockSparse

from ..block_sparse import break_table, build_chain, build_product, compute_exact, draw_table, make_inputs
from ..cases import relative_error

EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.PersistentExecutor, il.Schedule(132)),
    *((il.MegakernelExecutor, il.Schedule(132, dispatch)) for dispatch in il.Dispatch),
)
TOLERANCE = 4e-3  # of bf16
#: m, n, k, number of blocks, extents of a block, dtype; tile.
CASES = {
    "few rows, stages of two blocks": ((5, 1024, 1024, 60, (64, 64), il.bf16), il.MatmulTile(16, 64, 128)),
    "tall tiles of half a block row": (
        (300, 1024, 1024, 40, (128, 64), il.fp16),
        il.MatmulTile(128, 64, 64, num_warps=8),
    ),
    "rows of more blocks than lanes": ((16, 512, 64 * 64, 350, (64, 64), il.bf16), il.MatmulTile(16, 64, 64)),
}


def run(executor: DeviceExecutor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    out = torch.full(executor.plan.graph.tensor("out").shape, float("nan"), dtype=given["x"].dtype, device="cuda")
    executor.run({**given, "out": out})
    executor.synchronize()
    return out


@pytest.mark.parametrize(("executor", "schedule"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
@pytest.mark.parametrize("name", CASES)
def test_any_table_is_right(executor: type[DeviceExecutor], schedule: il.Schedule, name: str) -> None:
    shape, tile = CASES[name]
    _, n, k, count, (height, depth), _ = shape
    launch = executor(il.build(build_product(*shape, tile=tile), schedule), il.RunOptions(timeout_s=10.0))
    for seed in range(3):  # other tables under one plan
        columns, rows = draw_table(n // height, k // depth, count, seed)
        if seed == 2:
            columns, rows = break_table(columns, rows, k // depth)
        given = make_inputs(launch.plan.graph, columns, rows, seed, "cuda")
        exact = compute_exact(launch.plan.graph, given)
        assert relative_error(run(launch, given).cpu(), exact) < TOLERANCE


@pytest.mark.parametrize("executor", [il.PersistentExecutor, il.MegakernelExecutor])
def test_a_table_that_the_launch_writes_is_read_after_its_waits(executor: type[DeviceExecutor]) -> None:
    graph = build_product(16, 1024, 1024, 60, (64, 64), tile=il.MatmulTile(16, 64, 64), writes_table=True)
    launch = executor(il.build(graph, il.Schedule(132)), il.RunOptions(timeout_s=10.0))
    for seed in range(3):
        given = make_inputs(graph, *draw_table(16, 16, 60, seed), seed, "cuda")
        assert relative_error(run(launch, given).cpu(), compute_exact(graph, given)) < TOLERANCE


@pytest.mark.parametrize("dispatch", [il.Dispatch.STATIC, il.Dispatch.TICKET])
def test_a_chain_of_products_waits_for_its_rows_alone(dispatch: il.Dispatch) -> None:
    graph = build_chain(100, 1024, 60, 64, il.MatmulTile(64, 64, 64))
    launch = il.MegakernelExecutor(il.build(graph, il.Schedule(132, dispatch)), il.RunOptions(timeout_s=10.0))
    for seed in range(3):
        given = make_inputs(graph, *draw_table(16, 16, 60, seed), seed, "cuda")
        assert relative_error(run(launch, given).cpu(), compute_exact(graph, given)) < 2 * TOLERANCE


@pytest.mark.parametrize("m", [16, 256, 4096])
@pytest.mark.parametrize("zeros", [50, 80, 95])
def test_large_products_are_as_right_as_the_library_in_launches_that_overlap(zeros: int, m: int) -> None:
    work = BlockSparse.from_fields({"m": m}, True, f"zeros-{zeros}")
    graph = work.build_graph(il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    launch = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=10.0, dependent_launch=True))
    table = {name: value.astype(int) for name, value in work.make_host_inputs(0).items()}
    given = make_inputs(graph, table["columns"], table["rows"], 0, "cuda")
    exact = work.run_dense(torch, {name: value.double() for name, value in given.items()})["out"]
    library = relative_error(work.list_alternatives(torch)["BSR"](given)["out"], exact)
    outs = [torch.full(exact.shape, float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    for out in outs:
        launch.run({**given, "out": out})
    launch.synchronize()
    assert all(relative_error(out, exact) <= 1.5 * library for out in outs)
