"""Average pooling, and taps of a row as channels, under the Triton interpreter."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace.graph.op import Op
from interlace.kernels.avg_pool2d import avg_pool2d
from interlace.kernels.unfold_rows import unfold_rows

from ..cases import TORCH


def run(op: Op, x: torch.Tensor, tensors: tuple[il.Tensor, il.Tensor]) -> torch.Tensor:
    """Return an op's result, after its tiles' accesses were checked."""
    graph = il.Graph("layer", tensors, (op,), ("x",), ("out",))
    out = torch.full(tensors[1].shape, 3.0, dtype=x.dtype)
    il.SerialExecutor(il.build(graph, il.Schedule(2)), il.RunOptions("cpu")).run({"x": x, "out": out})
    assert il.check_footprint(graph, op.name, device="cpu", tiles=(0,)).tiles == (0,)
    return out


@pytest.mark.parametrize(
    ("shape", "window", "stride", "tile", "dtype"),
    [((2, 7, 7, 24), 7, None, (1, 16), il.bf16), ((1, 7, 9, 16), (3, 2), (2, 3), (2, 8), il.fp32)],
)
def test_average_pooling_matches_pytorch(
    shape: tuple[int, ...], window: object, stride: object, tile: tuple[int, int], dtype: il.DType
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(TORCH[dtype.name])
    gold = torch.nn.functional.avg_pool2d(x.float().permute(0, 3, 1, 2), window, stride).permute(0, 2, 3, 1)
    tensors = il.Tensor("x", shape, dtype), il.Tensor("out", tuple(gold.shape), dtype)
    op = avg_pool2d("pool", *tensors, window=window, stride=stride, tile=tile)  # type: ignore[arg-type]
    assert torch.allclose(run(op, x, tensors).float(), gold, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("channels_last", [True, False])
def test_taps_become_channels_as_pytorch_unfolds(channels_last: bool) -> None:
    x = torch.randn((2, 3, 5, 12), generator=torch.Generator().manual_seed(0)).bfloat16()
    columns = torch.nn.functional.unfold(x.float(), (1, 7), 1, (0, 3), (1, 2))
    columns = columns.view(2, 3, 7, 5, 6).permute(0, 3, 4, 2, 1).flatten(3)
    gold = torch.nn.functional.pad(columns, (0, 3)).bfloat16()
    given = x.permute(0, 2, 3, 1).contiguous() if channels_last else x
    tensors = il.Tensor("x", tuple(given.shape), il.bf16), il.Tensor("out", tuple(gold.shape), il.bf16)
    op = unfold_rows("unfold", *tensors, taps=7, stride=2, padding=3, channels_last=channels_last, rows=2)
    assert torch.equal(run(op, given, tensors), gold)
