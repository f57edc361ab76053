"""Convolutions under the Triton interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.core.errors import ShapeError
from interlace.kernels.conv2d import Conv2DTile
from interlace.workloads import ResNetBlock, conv_chain

from ..cases import TORCH, relative_error
from ..convolutions import Convolution
from .cases import EXECUTORS, executor

CASES = {
    "halo and two blocks of channels": (
        Convolution((2, 7, 7, 24), 24, (3, 3), padding=(1, 1)),
        Conv2DTile(1, 2, 16, 16),
        il.bf16,
    ),
    "strides, dilations, whole images": (
        Convolution((3, 9, 6, 16), 16, (3, 2), (2, 1), (1, 0), (1, 2), ("relu",)),
        Conv2DTile(2, 5, 16, 16),
        il.fp16,
    ),
    "one tap, padding all around": (
        Convolution((1, 3, 3, 40), 8, (1, 1), (2, 2), (2, 2), epilogue=("bias",)),
        Conv2DTile(1, 2, 16, 32),
        il.fp32,
    ),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_convolution_matches_pytorch(name: str, parts: int) -> None:
    conv, tile, dtype = CASES[name]
    graph = conv.build_graph(tile, dtype)
    split = {"conv": il.SplitK(parts)} if parts > 1 and graph.ops[0].reduction.chunks > 1 else {}
    generator = torch.Generator().manual_seed(parts)
    inputs = {n: torch.randn(graph.tensor(n).shape, generator=generator).to(TORCH[dtype.name]) for n in graph.inputs}
    out = torch.full(graph.tensor("out").shape, float("nan"), dtype=TORCH[dtype.name])
    plan = il.build(graph, il.Schedule(3, split=split))
    il.PersistentExecutor(plan, il.RunOptions("cpu")).run({**inputs, "out": out})
    gold = conv.answer({n: value.double() for n, value in inputs.items()})
    assert relative_error(out, gold) < (1e-6 if dtype is il.fp32 else 2 * dtype.epsilon)


@pytest.mark.parametrize("name", ["serial", "semaphore_streams-chunked", "static", "ticket-chunked"])
def test_every_executor_computes_the_same(name: str) -> None:
    assert name in EXECUTORS
    problem = ResNetBlock(16, 4, 2, il.fp32)
    given = problem.make_inputs(0)
    graph = conv_chain(2, 4, 16, 2, il.fp32, Conv2DTile(1, 2, 16, 16), has_residual=True)
    out = torch.full((2, 4, 4, 16), float("nan"))
    executor(name, graph).run({**{n: torch.from_numpy(np.array(v)) for n, v in given.items()}, "out": out})
    gold = problem.run_dense(np, {n: v.astype(np.float64) for n, v in given.items()})["out"]
    assert relative_error(out, torch.from_numpy(gold)) < 1e-6


def test_tile_touches_nothing_beyond_its_declared_boxes() -> None:
    graph = CASES["strides, dilations, whole images"][0].build_graph(Conv2DTile(1, 2, 16, 16))
    assert il.check_footprint(graph, "conv", device="cpu", tiles=(0, 2)).tiles == (0, 2)


def test_extents_that_are_no_powers_of_two_are_refused() -> None:
    graph = Convolution((1, 4, 4, 24), 24, (3, 3)).build_graph(Conv2DTile(1, 1, 24, 24))
    with pytest.raises(ShapeError, match="Triton's extents must be powers of two"):
        il.PersistentExecutor(il.build(graph, il.Schedule(1)), il.RunOptions("cpu"))
