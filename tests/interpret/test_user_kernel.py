"""Kernels of one's own: with a declared footprint under every executor, or with waits placed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import interlace as il
from interlace import device
from interlace.core.errors import GraphError, HangError, ParamError
from interlace.executors.device import DeviceExecutor

from ..cases import relative_error
from .cases import EXECUTORS, TILE, Case, case
from .kernels import SCALE, blur, row_sum, scale

CPU = il.RunOptions("cpu")


def make_unsplit_executor(name: str, graph: il.Graph) -> DeviceExecutor:
    """The executor of this name, with no reduction split."""
    cls, schedule = EXECUTORS[name]
    return cls(il.build(graph, replace(schedule(graph), split=il.WholeTiles())), CPU)


@pytest.mark.parametrize("executor", [il.SerialExecutor, il.SemaphoreStreamsExecutor, il.PersistentExecutor])
def test_a_param_that_is_missing_at_compile_time_is_named(executor: type[DeviceExecutor]) -> None:
    x, y = il.Tensor("x", (20, 40), il.fp32), il.Tensor("y", (20, 40), il.fp32)
    op = scale("scale", x, y, 3.0)
    less = replace(op, params=tuple(param for param in op.params if param[0] != "BN"))
    graph = il.Graph("scaled", (x, y), (less,), ("x",), ("y",))
    with pytest.raises(ParamError, match=r"op 'scale' lacks params \['BN'\], which the body of kernel 'scale' takes"):
        executor(il.build(graph, il.Schedule(1)), CPU)


def scaled_row_sum(dtype: str) -> Case:
    """Two kernels of the user's: ``out = (3 * x).sum(1)``."""
    d = il.dtype(dtype)
    x, y, out = il.Tensor("x", (20, 40), d), il.Tensor("y", (20, 40), d), il.Tensor("out", (20, 1), d)
    ops = (scale("scale", x, y, 3.0), row_sum("sum", y, out))
    graph = il.Graph("scaled row sum", (x, y, out), ops, ("x",), ("out",))
    return Case(graph, lambda t: (3 * t["x"]).sum(1, keepdim=True))


def build_mixed_case() -> Case:
    """A kernel of the user's on each side of a built-in one: ``out = ((3 * x) @ weight.T).sum(1)``."""
    shapes = {"x": (20, 40), "weight": (24, 40), "y": (20, 40), "z": (20, 24), "out": (20, 1)}
    t = {name: il.Tensor(name, shape, il.fp32) for name, shape in shapes.items()}
    ops = (
        scale("scale", t["x"], t["y"], 3.0),
        il.matmul("mm", t["y"], t["weight"], t["z"], tile=TILE),
        row_sum("sum", t["z"], t["out"]),
    )
    graph = il.Graph("mixed", tuple(t.values()), ops, ("x", "weight"), ("out",))
    return Case(graph, lambda t: ((3 * t["x"]) @ t["weight"].T).sum(1, keepdim=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", list(EXECUTORS))
def test_a_declared_footprint_is_all_that_an_executor_needs(name: str, dtype: str) -> None:
    c = scaled_row_sum(dtype)
    run = make_unsplit_executor(name, c.graph)
    for seed in range(2):
        inputs = c.inputs(seed)
        c.check(c.run(run, inputs), inputs)
        assert relative_error(c.reference(run.plan, inputs), c.compute_exact(inputs)) < 1e-12


@pytest.mark.parametrize("name", list(EXECUTORS))
def test_kernels_of_ones_own_mix_with_built_in_ones(name: str) -> None:
    c = build_mixed_case()
    inputs = c.inputs()
    c.check(c.run(make_unsplit_executor(name, c.graph), inputs), inputs)


def test_a_split_matmul_feeds_a_kernel_of_ones_own() -> None:
    c = build_mixed_case()
    schedule = il.Schedule(3, split={"mm": il.SplitK(3)}, chunk_waits=True)
    inputs = c.inputs()
    for cls in (il.SerialExecutor, il.SemaphoreStreamsExecutor, il.PersistentExecutor):
        c.check(c.run(cls(il.build(c.graph, schedule), CPU), inputs), inputs)


def test_a_split_reduction_of_ones_own_is_right_or_refused() -> None:
    c = scaled_row_sum("fp32")
    plan = il.build(c.graph, il.Schedule(3, split={"sum": il.SplitK(2)}))
    try:
        run = il.PersistentExecutor(plan, CPU)
    except GraphError:
        return
    assert run._workspace.numel() >= run._table.slots * 16  # else the run writes behind its end
    inputs = c.inputs()
    c.check(c.run(run, inputs), inputs)


def test_a_stencil_waits_for_its_neighbours_alone() -> None:
    """Two blurs with a halo: each tile of the second waits for the up to nine tiles around it."""
    x, y, z = (il.Tensor(name, (48, 48), il.fp32) for name in "xyz")
    ops = (blur("first", x, y, (1, 1), (1, 1)), blur("second", y, z, (1, 1), (1, 1)))
    graph = il.Graph("blurs", (x, y, z), ops, ("x",), ("z",))

    def answer(t: Any) -> torch.Tensor:
        value = t["x"][None, None]
        for _ in range(2):
            value = torch.nn.functional.avg_pool2d(value, 3, 1, 1)
        return value[0, 0]

    c = Case(graph, answer)
    for interleaving in (il.OpAfterOp(), il.RowPanels(1)):
        run = il.PersistentExecutor(il.build(graph, il.Schedule(3, interleaving=interleaving)), CPU)
        waits = run.plan.waits
        counts = [
            int(waits.count[waits.ptr[i] : waits.ptr[i + 1]].sum())
            for i in range(len(run.plan.items))
            if run.plan.items.op[i] == 1
        ]
        assert sorted(counts) == [4] * 4 + [6] * 4 + [9]
        inputs = c.inputs()
        c.check(c.run(run, inputs), inputs)


def test_a_kernel_updates_a_tensor_in_place() -> None:
    """``y = 2 * x; y = 3 * y``: the second op reads and writes the same tiles of one tensor."""
    x, y = il.Tensor("x", (20, 24), il.fp32), il.Tensor("y", (20, 24), il.fp32)
    graph = il.Graph("in place", (x, y), (scale("a", x, y, 2.0), scale("b", y, y, 3.0)), ("x",), ("y",))
    c = Case(graph, lambda t: 6 * t["x"])
    for name in ("serial-split", "semaphore_streams", "static", "ticket"):
        run, inputs = make_unsplit_executor(name, graph), c.inputs()
        for _ in range(2):
            c.check(c.run(run, inputs), inputs)


def test_a_kernel_without_a_triton_body_is_named() -> None:
    x, y = il.Tensor("x", (16, 16), il.fp32), il.Tensor("y", (16, 16), il.fp32)
    bare = replace(SCALE, triton=None)
    op = replace(scale("a", x, y, 2.0), body=bare)
    plan = il.build(il.Graph("g", (x, y), (op,), ("x",), ("y",)), il.Schedule(1))
    with pytest.raises(GraphError, match="op 'a': kernel 'scale' has no Triton body"):
        il.SerialExecutor(plan, CPU).run({"x": torch.ones(16, 16), "y": torch.ones(16, 16)})


# ---------------------------------------------------------------- waits placed by hand


@triton.jit
def copy_kernel(sync, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, POST: tl.constexpr):
    own = device.load_tile(sync)
    device.wait(own, sync)
    row = own.i * BM + tl.arange(0, BM)[:, None]
    column = own.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    tl.store(y + row * N + column, tl.load(x + row * N + column, mask=inside), mask=inside)
    if POST:
        device.post(own, sync)


@triton.jit
def matmul_kernel(sync, x, w, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """``y = x @ w.T``, which waits for each stretch of x just before it reads it."""
    own = device.load_tile(sync)
    device.wait(own, sync)
    row = own.i * BM + tl.arange(0, BM)[:, None]
    column = own.j * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(device.count_chunks(own, sync)):
        lo, hi = device.wait_chunk(own, sync, s)
        for k in range(lo, hi, BK):
            along = k + tl.arange(0, BK)
            a = tl.load(x + row * K + along[None, :], mask=(row < M) & (along[None, :] < K), other=0.0)
            b = tl.load(w + column * K + along[:, None], mask=(column < N) & (along[:, None] < K), other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(y + row * N + column, acc, mask=(row < M) & (column < N))
    device.post(own, sync)


@pytest.mark.parametrize("policy", [il.TileSync(), il.RowSync(), il.KernelSync()], ids=str)
def test_waits_placed_by_hand_order_two_copies(policy: il.SyncPolicy) -> None:
    c = case("two-copies", 20, "fp32")
    run = il.SemaphoreStreamsExecutor(il.build(c.graph, il.Schedule(4, policy=policy)), CPU)
    for seed in range(3):
        x = c.inputs(seed)["x"]
        y, z = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
        with run.open_stages() as stages:
            assert list(stages) == ["first", "second"]
            with stages["first"] as stage:
                copy_kernel[stage.grid](stage.sync, x, y, *x.shape, 16, 16, True)
            with stages["second"] as stage:
                copy_kernel[stage.grid](stage.sync, y, z, *x.shape, 16, 16, True)
        run.synchronize()
        assert torch.equal(z, x)


def test_a_post_forgotten_by_hand_raises_hang_error() -> None:
    c = case("two-copies", 20, "fp32")
    run = il.SemaphoreStreamsExecutor(il.build(c.graph, il.Schedule(4)), CPU)
    x = c.inputs()["x"]
    y, z = torch.empty_like(x), torch.empty_like(x)
    for post in (False, True):
        with run.open_stages() as stages:
            with stages["first"] as stage:
                copy_kernel[stage.grid](stage.sync, x, y, *x.shape, 16, 16, post)
            with stages["second"] as stage:
                copy_kernel[stage.grid](stage.sync, y, z, *x.shape, 16, 16, True)
        if not post:
            with pytest.raises(HangError, match=r"op 'first', tile \(0, 0\) never posted"):
                run.synchronize()
    run.synchronize()
    assert torch.equal(z, x)


def test_waits_placed_inside_a_reduction_by_hand() -> None:
    """The second op of two matmuls waits stretch by stretch; the first is the built-in one."""
    c = case("two-matmuls", 20, "fp32")
    run = il.SemaphoreStreamsExecutor(il.build(c.graph, il.Schedule(4, chunk_waits=True)), CPU)
    assert (run._table.items["wait_hi"] - run._table.items["wait_mid"]).max() == 2  # three chunks, so two later waits
    for seed in range(2):
        inputs, out = c.inputs(seed), c.make_poisoned_output()
        hidden = run.allocate_tensor("y").fill_(float("nan"))
        launches = run.build_launches({**inputs, "y": hidden, "out": out})
        with run.open_stages() as stages:
            with stages["first"]:
                launches[0].run()
            with stages["second"] as stage:
                (m, k), n = hidden.shape, out.shape[1]
                matmul_kernel[stage.grid](stage.sync, hidden, inputs["b"], out, m, n, k, 16, 16, 16)
        run.synchronize()
        c.check(out, inputs)
