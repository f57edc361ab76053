"""Ops that go through rows on a GPU: as right as PyTorch on every executor, alone and between products."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads import Attention, FFNBlock, NormedMatmuls, Workload

from ..cases import TORCH, by_default, relative_error
from ..rows import CASES, Rows, build_layer_norm, build_rms_norm, build_softmax, pointwise, together

WIDE = {
    "norm of many rows": build_layer_norm(1000, 12288, rows=8),
    "norm of rows by four warps": build_layer_norm(1001, 4096, rows=8),
    "RMS norm of rows that lie anywhere": build_rms_norm(777, 1601, rows=16),
    "softmax of many rows": build_softmax(4100, 2000, rows=32),
    "norm far from 0": build_layer_norm(33, 1600, il.fp32, offset=4000.0),
    "softmax of a vocabulary": build_softmax(16, 50257),
    "pointwise": pointwise(511, 6400, activation=il.Activation.SILU, times="matrix", plus="vector", tile=(8, 1024)),
}
EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.CudaGraphExecutor, il.Schedule(132)),
    (il.PdlExecutor, il.Schedule(132)),
    (il.StreamsExecutor, il.Schedule(132)),
    (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.RowSync())),
    (il.PersistentExecutor, il.Schedule(132)),
    (il.PersistentExecutor, il.Schedule(132, il.Dispatch.STATIC, policy=il.RowSync())),
    *((il.MegakernelExecutor, il.Schedule(132, dispatch, policy=il.RowSync())) for dispatch in il.Dispatch),
)


def check(rows: dict[str, Rows], executor: type[DeviceExecutor]) -> None:
    run = executor(il.build(together(rows.items()), il.Schedule(132)), il.RunOptions(timeout_s=10.0))
    inputs = {name: case.inputs(device="cuda") for name, case in rows.items()}
    tensors = {name + of: value for name, given in inputs.items() for of, value in given.items()}
    tensors |= {name: run.allocate_tensor(name).fill_(float("nan")) for name in run.plan.graph.outputs}
    run.run(tensors)
    run.synchronize()
    errors = {
        name: relative_error(tensors[name + "out"], case.compute_exact(inputs[name])) for name, case in rows.items()
    }
    assert {name: error for name, error in errors.items() if not error < rows[name].tolerance} == {}


@pytest.mark.parametrize("executor", [il.SerialExecutor, il.MegakernelExecutor], ids=lambda e: e.name)
@pytest.mark.parametrize("rows", [CASES, WIDE], ids=["small", "wide"])
def test_rows_of_any_length_are_right(executor: type[DeviceExecutor], rows: dict[str, Rows]) -> None:
    check(rows, executor)


@pytest.mark.parametrize(("executor", "schedule"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
@pytest.mark.parametrize("kind", [FFNBlock, NormedMatmuls, Attention], ids=lambda kind: kind.name)
@pytest.mark.parametrize("m", [1, 33, 511])
def test_problems_with_ops_of_rows_are_as_right_as_pytorch(
    executor: type[DeviceExecutor], schedule: il.Schedule, kind: type[Workload], m: int
) -> None:
    preset = {FFNBlock: "gpt2-xl", NormedMatmuls: "small", Attention: "small"}[kind]
    problem = kind.from_fields({"m": m}, True, preset)
    is_right(executor(il.build(problem.build_graph(il.H200), schedule), il.RunOptions(timeout_s=10.0)), problem)


@pytest.mark.parametrize("m", [24, 100, 160, 300])
def test_products_normalised_by_many_sums_are_as_right_as_pytorch(m: int) -> None:
    """In the tiles of the megakernel: of tokens as rows and as columns, in one to three warpgroups."""
    problem = NormedMatmuls(1024, 8192, m)
    is_right(il.MegakernelExecutor(by_default(problem.build_graph(il.H200)), il.RunOptions(timeout_s=10.0)), problem)


def is_right(run: DeviceExecutor, problem: Workload) -> None:
    for seed in range(2):
        given = {n: torch.from_numpy(v).to("cuda", TORCH["bf16"]) for n, v in problem.make_inputs(seed).items()}
        out = run.allocate_tensor("out").fill_(float("nan"))
        run.run({**given, "out": out})
        run.synchronize()
        gold = problem.run_dense(torch, {name: value.double() for name, value in given.items()})["out"]
        plain = relative_error(problem.run_dense(torch, given)["out"], gold)
        assert relative_error(out, gold) <= max(1.5 * plain, 4e-3)
