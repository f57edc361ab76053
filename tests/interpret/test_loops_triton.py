"""Loops that are converted from a Triton function compute what Triton's interpreter computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import interlace as il
from interlace import loops

from .cases import relative_error

SHAPE = M, N = (37, 100)
#: Largest relative error to the interpreter, which truncates where it converts to bf16, and to float64.
LIMITS = {"bf16": (6e-3, 2.5e-3), "fp16": (1e-4, 4e-4), "fp32": (1e-6, 1e-6)}


@triton.jit
def silu_times(x, times, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    column = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    value = tl.load(x + row * N + column, mask=inside).to(tl.float32)
    factor = tl.load(times + row * N + column, mask=inside).to(tl.float32)
    tl.store(out + row * N + column, (value * tl.sigmoid(value) * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax(x, out, stride, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + column, mask=column < N, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * stride + column, value / tl.sum(value, axis=0), mask=column < N)


@triton.jit
def scale_rows(value, squares, N, EPS):
    return value * (1.0 / tl.sqrt(squares / N + EPS))[:, None]


@triton.jit
def rms_norm(x, weight, out, M, N, EPS, BM: tl.constexpr, BN: tl.constexpr):
    row = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    column = tl.arange(0, BN)
    inside = (row < M) & (column < N)[None, :]
    value = tl.load(x + row * N + column[None, :], mask=inside, other=0.0).to(tl.float32)
    value = scale_rows(value, tl.sum(value * value, 1), N, EPS)
    gain = tl.load(weight + column, mask=column < N).to(tl.float32)
    tl.store(out + row * N + column[None, :], value * gain[None, :], mask=inside)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("function", "grid", "inputs", "params", "compute"),
    [
        (
            silu_times,
            (5, 4),
            {"x": SHAPE, "times": SHAPE},
            {"M": M, "N": N, "BM": 8, "BN": 32},
            lambda x, times: torch.nn.functional.silu(x) * times,
        ),
        (softmax, (M,), {"x": SHAPE}, {"stride": N, "N": N, "BLOCK": 128}, lambda x: x.softmax(1)),
        (
            rms_norm,
            (10,),
            {"x": SHAPE, "weight": (N,)},
            {"M": M, "N": N, "EPS": 1e-5, "BM": 4, "BN": 128},
            lambda x, weight: torch.nn.functional.rms_norm(x, (N,), weight, 1e-5),
        ),
    ],
)
def test_converted_loops_compute_what_triton_computes(
    function: Any,
    grid: tuple[int, ...],
    inputs: dict[str, tuple[int, ...]],
    params: dict[str, Any],
    compute: Any,
    dtype: str,
) -> None:
    torch.manual_seed(0)
    data = {name: torch.randn(shape).to(getattr(torch, il.dtype(dtype).torch)) for name, shape in inputs.items()}
    out = torch.full_like(data["x"], float("nan"))
    function[grid](**data, out=out, **params)

    tensors = {name: il.Tensor(name, shape, il.dtype(dtype)) for name, shape in {**inputs, "out": SHAPE}.items()}
    op = loops.as_op("op", loops.convert_triton(function, grid, tensors, params), tensors)
    graph = il.Graph("converted", tuple(tensors.values()), (op,), tuple(inputs), ("out",))
    exact = {name: value.double() for name, value in data.items()}
    run = il.ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=0).run
    found = torch.from_numpy(run({name: value.numpy() for name, value in exact.items()})["out"])
    to_triton, to_float64 = LIMITS[dtype]
    assert relative_error(found, out.double()) < to_triton
    assert relative_error(found, compute(**exact)) < to_float64
