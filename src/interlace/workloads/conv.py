"""Convolutions of ResNet and VGG: pairs, chains of four, and a residual block, in channels-last memory.

Every convolution has 3 x 3 taps, stride 1, padding 1, as many output as input channels, a bias (a folded batch norm)
and ReLU. The pairs and chains are those of CuSync's benchmarks (Jangda et al., A framework for fine-grained
synchronization of dependent GPU kernels, 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.conv2d import Conv2DTile, conv2d
from interlace.kernels.conv2d.tile import ConvExtents
from interlace.kernels.matmul import Activation
from interlace.kernels.matmul.tile import TileShape
from interlace.workloads.base import (
    DTypeField,
    Inputs,
    Option,
    Presets,
    RecordedSizes,
    Target,
    Workload,
    sample_inputs,
)

_TAPS = 3
_MAX_CONVS = 1 << 10
_FEW, _MANY = (1, 4, 8), (12, 16, 20, 24, 28, 32)  # numbers of images
_PAIR_TARGETS = Target(1.3, _FEW, mean=True), Target(1.1, _MANY, mean=True)
_CHAIN_TARGETS = Target(1.4, _FEW, mean=True), Target(1.15, _MANY, mean=True)


def conv_chain(
    images: int,
    size: int,
    channels: int,
    convs: int = 2,
    dtype: DType = bf16,
    tile: Conv2DTile | None = None,
    *,
    has_residual: bool = False,
) -> Graph:
    """Build convolutions of 3 x 3 taps with bias and ReLU, each of the result of the one before.

    Inputs: ``x`` (images, size, size, channels), and for each number n from 1 on ``w<n>`` (channels, 3, 3, channels)
    and ``b<n>`` (channels,).

    Args:
        convs: number of convolutions.
        tile: tile of all convolutions.
        has_residual: True to add x before the last ReLU.

    Raises:
        ArgumentError, ShapeError, DTypeError: extents, a dtype or a tile that the kernel does not support.
    """
    shape = images, size, size, channels
    tensors = {"x": Tensor("x", shape, dtype)}
    inputs, ops, value = ["x"], [], tensors["x"]
    for n in range(1, convs + 1):
        weight = Tensor(f"w{n}", (channels, _TAPS, _TAPS, channels), dtype)
        bias = Tensor(f"b{n}", (channels,), dtype)
        result = Tensor("out" if n == convs else f"h{n}", shape, dtype)
        tensors |= {tensor.name: tensor for tensor in (weight, bias, result)}
        residual = tensors["x"] if has_residual and n == convs else None
        options = {"activation": Activation.RELU, "padding": 1, "tile": tile}
        ops.append(conv2d(f"conv{n}", value, weight, result, bias=bias, residual=residual, **options))  # type: ignore[arg-type]
        inputs += [weight.name, bias.name]
        value = result
    return Graph("resnet-block" if has_residual else "conv-chain", (*tensors.values(),), (*ops,), (*inputs,), ("out",))


def _convolve(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Return the convolution of 3 x 3 taps of channels-last images, with padding 1, plus the bias."""
    if xp is np:
        _, height, width, _ = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        taps = ((r, s) for r in range(_TAPS) for s in range(_TAPS))
        return bias + sum(padded[:, r : r + height, s : s + width] @ weight[:, r, s].T for r, s in taps)
    convolve = xp.nn.functional.conv2d
    return convolve(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), bias, padding=1).permute(0, 2, 3, 1)


def _apply_relu(xp: Any, value: Any) -> Any:
    return np.maximum(value, 0.0) if xp is np else xp.relu(value)


def _adapt_tile(extents: ConvExtents, tile: TileShape) -> Conv2DTile:
    """Return a tile of about as many pixels as a matmul's tile has rows, in whole rows or whole images."""
    rows = max(1, tile.m // extents.out_columns)
    images = max(1, rows // extents.out_rows)
    swapped = tile.n % 64 == 0
    return Conv2DTile(images, min(rows, extents.out_rows), tile.n, tile.k, swap_ab=swapped)


@dataclass(frozen=True)
class _Convolutions(Workload):
    """Convolutions of equal shapes, one after another."""

    cpu_preset: ClassVar[str] = "small"
    size: ClassVar[str] = "images"
    sizes: ClassVar[tuple[int, ...]] = _FEW + _MANY
    has_residual: ClassVar[bool] = False

    channels: Annotated[int, Option("Channels of all images; a multiple of 8.", least=8)]
    edge: Annotated[int, Option("Rows and columns of an image.", least=1)]
    images: Annotated[int, Option("Images.", least=1)] = 1
    dtype: DTypeField = bf16

    @property
    def count(self) -> int:
        """Number of convolutions."""
        return 2

    @property
    def _images_text(self) -> str:
        return f"{self.images} image{'s' * (self.images > 1)} of {self.edge} x {self.edge} x {self.channels}"

    @property
    def flops(self) -> float:
        return 2.0 * self.count * self.images * self.edge**2 * (_TAPS * self.channels) ** 2

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        extents = ConvExtents(
            self.images, self.edge, self.edge, self.channels, self.channels, _TAPS, _TAPS, padding=(1, 1)
        )
        own = None if tile is None else _adapt_tile(extents, tile)
        sizes = self.images, self.edge, self.channels, self.count
        return conv_chain(*sizes, self.dtype, own, has_residual=self.has_residual)

    def make_inputs(self, seed: int) -> Inputs:
        return sample_inputs(self.build_graph(CPU), seed, self.get_deviation)

    def get_deviation(self, tensor: Tensor) -> float:
        return (2.0 / (_TAPS**2 * self.channels)) ** 0.5 if tensor.name.startswith("w") else 1.0

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        value = tensors["x"]
        for n in range(1, self.count + 1):
            value = _convolve(xp, value, tensors[f"w{n}"], tensors[f"b{n}"])
            if self.has_residual and n == self.count:
                value = value + tensors["x"]
            value = _apply_relu(xp, value)
        return {"out": value}


@dataclass(frozen=True)
class ConvPair(_Convolutions):
    """Two 3 x 3 convolutions with bias and ReLU, as in ResNet."""

    name: ClassVar[str] = "conv-pair"
    presets: ClassVar[Presets] = {
        "small": {"channels": 16, "edge": 6},
        "resnet-64": {"channels": 64, "edge": 56},
        "resnet-128": {"channels": 128, "edge": 28},
        "resnet-256": {"channels": 256, "edge": 14},
        "resnet-512": {"channels": 512, "edge": 7},
    }
    gpu_preset: ClassVar[str] = "resnet-256"
    record: ClassVar[Mapping[str, RecordedSizes]] = {
        name: RecordedSizes(_FEW + _MANY, _PAIR_TARGETS) for name in presets if name != "small"
    }
    weights: ClassVar[tuple[str, ...]] = ("w1", "w2")

    @property
    def title(self) -> str:
        return f"two convolutions, {self._images_text}, {self.dtype}"


@dataclass(frozen=True)
class ResNetBlock(ConvPair):
    """A basic block of ResNet: two 3 x 3 convolutions, and x added before the last ReLU."""

    name: ClassVar[str] = "resnet-block"
    has_residual: ClassVar[bool] = True

    @property
    def title(self) -> str:
        return super().title.replace("two convolutions", "two convolutions and a residual")


@dataclass(frozen=True)
class ConvChain(_Convolutions):
    """Convolutions of 3 x 3 taps with bias and ReLU, one after another, as in VGG."""

    name: ClassVar[str] = "conv-chain"
    presets: ClassVar[Presets] = {
        "small": {"channels": 16, "edge": 6, "convs": 3},
        "vgg-256-14": {"channels": 256, "edge": 14},
        "vgg-512-7": {"channels": 512, "edge": 7},
        "vgg-256": {"channels": 256, "edge": 56},
        "vgg-512": {"channels": 512, "edge": 28},
    }
    gpu_preset: ClassVar[str] = "vgg-256-14"
    record: ClassVar[Mapping[str, RecordedSizes]] = {
        name: RecordedSizes(_FEW + _MANY, _CHAIN_TARGETS) for name in presets if name != "small"
    }
    weights: ClassVar[tuple[str, ...]] = ("w1", "w2", "w3", "w4")

    convs: Annotated[int, Option("Convolutions.", least=1, most=_MAX_CONVS)] = 4

    @property
    def count(self) -> int:
        return self.convs

    @property
    def title(self) -> str:
        return f"{self.convs} convolutions, {self._images_text}, {self.dtype}"
