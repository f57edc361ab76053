"""Graphs of one or two convolutions of any shape, and PyTorch's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import interlace as il
from interlace.kernels.conv2d import Conv2DTile, conv2d
from interlace.kernels.conv2d.tile import ConvExtents


@dataclass(frozen=True)
class Convolution:
    """Arguments of a convolution.

    Attributes:
        x: images, rows, columns and channels.
        n: output channels.
        taps: taps along height and width.
        epilogue: arguments that it has in addition, of bias, residual and relu.
    """

    x: tuple[int, int, int, int]
    n: int
    taps: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    epilogue: tuple[str, ...] = ("bias", "residual", "relu")

    @property
    def extents(self) -> ConvExtents:
        """The extents of the op."""
        return ConvExtents(*self.x, self.n, *self.taps, self.stride, self.padding, self.dilation)

    def build_graph(self, tile: Conv2DTile | None = None, dtype: il.DType = il.fp32) -> il.Graph:
        """Build the graph of the convolution alone."""
        e = self.extents
        out = self.x[0], e.out_rows, e.out_columns, self.n
        shapes = {"x": self.x, "w": (self.n, *self.taps, self.x[3]), "bias": (self.n,), "residual": out}
        t = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
        given = {name: t[name] for name in ("bias", "residual") if name in self.epilogue}
        result = il.Tensor("out", out, dtype)
        op = conv2d(
            "conv",
            t["x"],
            t["w"],
            result,
            **given,
            activation=il.Activation.RELU if "relu" in self.epilogue else il.Activation.NONE,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            tile=tile,
        )
        inputs = [t["x"], t["w"], *given.values()]
        return il.Graph("conv", (*inputs, result), (op,), tuple(i.name for i in inputs), ("out",))

    def answer(self, t: Mapping[str, object]) -> object:
        """Return PyTorch's result for these tensors, in their dtype."""
        import torch

        x, w = t["x"].permute(0, 3, 1, 2), t["w"].permute(0, 3, 1, 2)  # type: ignore[attr-defined]
        y = torch.nn.functional.conv2d(x, w, t.get("bias"), self.stride, self.padding, self.dilation)  # type: ignore[arg-type]
        value = y.permute(0, 2, 3, 1)
        if "residual" in t:
            value = value + t["residual"]  # type: ignore[operator]
        return torch.relu(value) if "relu" in self.epilogue else value


def draw_convolution(random: np.random.Generator) -> tuple[Convolution, Conv2DTile]:
    """Draw a small convolution, with any strides, paddings, dilations and epilogue, and a tile of it."""

    def draw(lo: int, hi: int) -> int:
        return int(random.integers(lo, hi + 1))

    while True:
        epilogue = tuple(name for name in ("bias", "residual", "relu") if random.random() < 0.5)
        conv = Convolution(
            (draw(1, 3), draw(1, 9), draw(1, 9), 8 * draw(1, 3)),
            8 * draw(1, 3),
            (draw(1, 4), draw(1, 4)),
            (draw(1, 3), draw(1, 3)),
            (draw(0, 3), draw(0, 3)),
            (draw(1, 2), draw(1, 2)),
            epilogue,
        )
        e = conv.extents
        if e.reach[0] <= e.height + 2 * e.padding[0] and e.reach[1] <= e.width + 2 * e.padding[1]:
            break
    images = draw(1, e.images)
    rows = e.out_rows if images > 1 else draw(1, e.out_rows + 1)
    return conv, Conv2DTile(images, rows, 8 * draw(1, 3), 8 * draw(1, 3))
