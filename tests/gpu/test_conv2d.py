"""Convolutions on a GPU: as right as PyTorch on every executor, run after run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.kernels.conv2d import Conv2DTile
from interlace.workloads import ResNetBlock

from ..cases import TORCH, relative_error
from ..convolutions import Convolution

_PADDED, _NARROW = {"padding": (1, 1)}, {"epilogue": ("bias",)}
#: A convolution, its tile in the megakernel, parts along channels.
CASES = {
    "7 x 7 in parts": (Convolution((1, 7, 7, 512), 512, (3, 3), **_PADDED), Conv2DTile(1, 4), 8),
    "two warpgroups": (Convolution((3, 28, 28, 128), 128, (3, 3), **_PADDED), Conv2DTile(1, 7, 128, num_warps=8), 1),
    "first layer": (Convolution((2, 224, 224, 8), 64, (7, 7), (2, 2), (3, 3)), Conv2DTile(1, 2), 1),
    "whole images, one tap": (Convolution((5, 14, 14, 256), 512, (1, 1), (2, 2)), Conv2DTile(2, 7, 128, 128), 1),
    "strides and dilations": (
        Convolution((2, 15, 13, 72), 40, (3, 5), (2, 3), (1, 4), (2, 1)),
        Conv2DTile(1, 3, 40, swap_ab=False),
        1,
    ),
    "two panels": (Convolution((2, 15, 13, 136), 200, (5, 3), (1, 1), (2, 0), (1, 3)), Conv2DTile(1, 3, 64, 128), 2),
    "wide images": (Convolution((2, 30, 250, 64), 64, (3, 3), **_PADDED, **_NARROW), Conv2DTile(1, 1), 1),
    "padding beyond the kernel": (Convolution((4, 12, 12, 64), 64, (3, 3), (4, 4), (7, 7)), Conv2DTile(1, 2), 1),
}


def draw(graph: il.Graph, seed: int) -> dict[str, torch.Tensor]:
    generator, found = torch.Generator("cuda").manual_seed(seed), {}
    for tensor in map(graph.tensor, graph.inputs):
        value = torch.randn(tensor.shape, generator=generator, device="cuda")
        if tensor.name.startswith("w"):
            value /= (tensor.shape[1] * tensor.shape[2] * tensor.shape[3]) ** 0.5
        found[tensor.name] = value.to(TORCH[tensor.dtype.name])
    return found


@pytest.mark.parametrize("dispatch", [il.Dispatch.STATIC, il.Dispatch.TICKET])
@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_megakernel_is_as_right_as_pytorch(name: str, dtype: il.DType, dispatch: il.Dispatch) -> None:
    conv, tile, parts = CASES[name]
    graph = conv.build_graph(tile, dtype)
    split = {"conv": il.SplitK(parts)} if parts > 1 else {}
    plan = il.build(graph, il.Schedule(132, dispatch, split=split))
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=10.0))
    out = torch.empty(graph.tensor("out").shape, dtype=TORCH[dtype.name], device="cuda")
    for seed in range(3):
        t = draw(graph, seed)
        gold = conv.answer({name: value.double() for name, value in t.items()})
        run.run({**t, "out": out.fill_(float("nan"))})
        run.synchronize()
        assert relative_error(out, gold) <= 1.5 * relative_error(conv.answer(t), gold)


EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.StreamsExecutor, il.Schedule(132)),
    (il.SemaphoreStreamsExecutor, il.Schedule(132, chunk_waits=True)),
    (il.PersistentExecutor, il.Schedule(132, il.Dispatch.STATIC, policy=il.RowSync())),
    *((il.MegakernelExecutor, il.Schedule(132, dispatch, policy=il.Conv2DSync())) for dispatch in il.Dispatch),
    (il.MegakernelExecutor, il.Schedule(132, chunk_waits=True)),
)


@pytest.mark.parametrize(("executor", "schedule"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
def test_block_is_as_right_as_pytorch_on_every_executor(executor: type[DeviceExecutor], schedule: il.Schedule) -> None:
    problem = ResNetBlock(128, 14, 3)
    graph = problem.build_graph(il.H200)
    tiles = executor.select_default(graph, il.H200).tiles
    run = executor(il.build(graph, replace(schedule, tiles=tiles)), il.RunOptions(timeout_s=10.0))
    t = {name: torch.from_numpy(value).cuda().bfloat16() for name, value in problem.make_inputs(0).items()}
    gold = problem.run_dense(torch, {name: value.double() for name, value in t.items()})["out"]
    out = torch.empty(graph.tensor("out").shape, dtype=torch.bfloat16, device="cuda")
    for _ in range(3):
        run.get_intermediate("h1").fill_(float("nan"))
        run.run({**t, "out": out.fill_(float("nan"))})
        run.synchronize()
        assert relative_error(out, gold) <= 1.5 * relative_error(problem.run_dense(torch, t)["out"], gold)
