"""Graphs of segments: their convolutions in channels-last memory, with channels padded to multiples of 8.

A first layer of 3 channels would fill a 64-channel stage of each tap to a twentieth. So the taps of a row become
channels before: 7 x 7 taps of 3 channels are 7 x 1 taps of 21 channels, padded to 24, of an image whose columns are the
output's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx
from torch.nn import functional

from interlace.core.dtypes import DType
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.conv2d import conv2d
from interlace.kernels.matmul import Activation
from interlace.kernels.max_pool2d import max_pool2d
from interlace.nn.convnet.trace import ConvStep, PoolStep, Segment, Step

_CHANNEL_STEP = 8
_MIN_POOL_CHANNELS = 16  # lower bound of the channels of a pooling's tile


@dataclass(frozen=True, eq=False)
class SegmentInput:
    """An input of a segment's graph.

    Attributes:
        name: name of the tensor.
        node: node whose value it holds.
        step: step whose taps along a row become channels; None for an image as it is.
    """

    name: str
    node: fx.Node
    step: ConvStep | None = None

    def fill(self, image: torch.Tensor, value: torch.Tensor) -> None:
        """Copy a value (images, channels, H, W) into the input, whose padding is zero and stays so."""
        if self.step is None:
            image[..., : value.shape[1]].copy_(value.permute(0, 2, 3, 1))
            return
        taps, (stride, pad, dilation) = self.step.weight.shape[3], self.step.along_width
        reach, columns = dilation * (taps - 1) + 1, image.shape[2]
        needed = (columns - 1) * stride + reach
        padded = functional.pad(value, (pad, needed - pad - value.shape[3]))
        windows = padded.unfold(3, reach, stride)[..., ::dilation]  # (images, channels, H, columns, taps)
        target = image[..., : taps * value.shape[1]].view(*image.shape[:3], taps, value.shape[1])
        target.copy_(windows.permute(0, 2, 3, 4, 1))


def pad_channels(channels: int) -> int:
    """Return a number of channels rounded up to a multiple of 8."""
    return -(-channels // _CHANNEL_STEP) * _CHANNEL_STEP


def list_inputs(segment: Segment) -> list[SegmentInput]:
    """Return the inputs of a segment's graph."""
    narrow = [step for step in segment.steps if isinstance(step, ConvStep) and _is_narrow(step)]
    wide = {
        node
        for step in segment.steps
        for node in (None if step in narrow else step.x, step.residual)
        if node in segment.inputs
    }
    images = [SegmentInput(node.name, node) for node in segment.inputs if node in wide]
    return images + [SegmentInput(f"{step.op}.columns", step.x, step) for step in narrow]


def _is_narrow(step: ConvStep) -> bool:
    """Return True if the taps of a row become channels."""
    return step.weight.shape[1] < _CHANNEL_STEP


def build_segment_graph(
    segment: Segment, shapes: Mapping[fx.Node, tuple[int, ...]], dtype: DType, workers: int
) -> Graph:
    """Build the graph of a segment for a number of workers.

    Tensors have the names of nodes; weights are ``<node>.weight`` and ``.bias``.

    Raises:
        ShapeError: a convolution that the kernel does not support.
    """
    tensors: dict[str, Tensor] = {}

    def add(name: str, shape: tuple[int, ...]) -> Tensor:
        return tensors.setdefault(name, Tensor(name, shape, dtype))

    def add_image(node: fx.Node) -> Tensor:
        images, channels, height, width = shapes[node]
        return add(node.name, (images, height, width, pad_channels(channels)))

    inputs, ops = [each.name for each in list_inputs(segment)], []
    for step in segment.steps:
        if isinstance(step, PoolStep):
            pooled, tile = add_image(step.out), _select_pool_tile(shapes[step.out], workers)
            options = {"window": step.window, "stride": step.stride, "padding": step.padding, "tile": tile}
            ops.append(max_pool2d(step.op, add_image(step.x), pooled, **options))
            continue
        n, channels, taps_h, taps_w = step.weight.shape
        stride, padding, dilation = step.stride, step.padding, step.dilation
        if _is_narrow(step):
            images, _, height, _ = shapes[step.x]
            channels, taps_w = channels * taps_w, 1
            x = add(f"{step.op}.columns", (images, height, shapes[step.out][3], pad_channels(channels)))
            stride, padding, dilation = (stride[0], 1), (padding[0], 0), (dilation[0], 1)
        else:
            x = add_image(step.x)
        weight = add(f"{step.op}.weight", (n, taps_h, taps_w, pad_channels(channels)))
        bias = None if step.bias is None else add(f"{step.op}.bias", (n,))
        inputs += [weight.name] + ([] if bias is None else [bias.name])
        op = conv2d(
            step.op,
            x,
            weight,
            add_image(step.out),
            bias=bias,
            residual=None if step.residual is None else add_image(step.residual),
            activation=Activation.RELU if step.has_relu else Activation.NONE,
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
        ops.append(op)
    outputs = tuple(node.name for node in segment.outputs)
    return Graph("convnet", (*tensors.values(),), (*ops,), (*inputs,), outputs)


def _select_pool_tile(shape: tuple[int, ...], workers: int) -> tuple[int, int]:
    """Return rows and channels of a pooling's tiles, one for each worker, given its result (images, channels, H, W)."""
    images, channels, height, _ = shape
    width = 64
    while width > _MIN_POOL_CHANNELS and images * height * -(-channels // width) < workers:
        width //= 2
    return 1, width


def list_weights(segment: Segment) -> dict[str, torch.Tensor]:
    """Return the weights and biases of a segment's graph, by tensor, in its layout."""
    found = {}
    for step in (each for each in segment.steps if isinstance(each, ConvStep)):
        weight = step.weight.permute(0, 2, 3, 1)  # (N, R, S, C)
        if _is_narrow(step):
            weight = weight.flatten(2)[:, :, None]
        channels = weight.shape[3]
        found[f"{step.op}.weight"] = functional.pad(weight, (0, pad_channels(channels) - channels)).contiguous()
        if step.bias is not None:
            found[f"{step.op}.bias"] = step.bias.contiguous()
    return found


def run_step(step: Step, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """Compute a step in PyTorch's own ops."""
    if isinstance(step, PoolStep):
        return functional.max_pool2d(x, step.window, step.stride, step.padding)
    value = torch.nn.functional.conv2d(x, step.weight, step.bias, step.stride, step.padding, step.dilation)
    if residual is not None:
        value = value + residual
    return torch.relu(value) if step.has_relu else value
