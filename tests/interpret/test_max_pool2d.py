"""Max-pooling under the Triton interpreter."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.kernels.max_pool2d import max_pool2d

from ..cases import TORCH


@pytest.mark.parametrize(
    ("shape", "window", "stride", "padding", "tile", "dtype"),
    [((2, 7, 9, 24), 3, 2, 1, (2, 16), il.bf16), ((1, 6, 6, 16), (2, 3), None, 0, (1, 8), il.fp32)],
)
def test_pooling_matches_pytorch(
    shape: tuple[int, ...], window: object, stride: object, padding: int, tile: tuple[int, int], dtype: il.DType
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(TORCH[dtype.name])
    x[0, 3, 2, 1] = float("nan")
    pooled = torch.nn.functional.max_pool2d(x.float().permute(0, 3, 1, 2), window, stride, padding)
    gold = pooled.permute(0, 2, 3, 1).to(x.dtype)
    tensors = il.Tensor("x", shape, dtype), il.Tensor("out", tuple(gold.shape), dtype)
    op = max_pool2d("pool", *tensors, window=window, stride=stride, padding=padding, tile=tile)  # type: ignore[arg-type]
    out = torch.full_like(gold, 3.0)
    graph = il.Graph("pool", tensors, (op,), ("x",), ("out",))
    il.SerialExecutor(il.build(graph, il.Schedule(2)), il.RunOptions("cpu")).run({"x": x, "out": out})
    assert torch.equal(out.float().nan_to_num(7.0), gold.float().nan_to_num(7.0))
    assert il.check_footprint(graph, "pool", device="cpu", tiles=(0,)).tiles == (0,)
