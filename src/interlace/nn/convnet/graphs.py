"""Graphs of segments: their steps in channels-last memory, with channels padded to multiples of 8.

A first layer of 3 channels would fill a 64-channel stage of each tap to a twentieth. So the taps of a row become
channels before: 7 x 7 taps of 3 channels are 7 x 1 taps of 21 channels, padded to 24, of an image whose columns are the
output's. The launch does so itself, from images as the caller has them.

A linear layer is a convolution whose kernel covers the image: (N, C * H * W) weights are (N, C, H, W). So the order in
which PyTorch flattens an image disappears in the layout of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.nn import functional

from interlace.core.dtypes import DType
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.avg_pool2d import avg_pool2d
from interlace.kernels.conv2d import conv2d
from interlace.kernels.matmul import Activation
from interlace.kernels.max_pool2d import max_pool2d
from interlace.kernels.unfold_rows import unfold_rows
from interlace.nn.convnet.match import Shapes
from interlace.nn.convnet.steps import ConvStep, PoolStep, Segment

_CHANNEL_STEP = 8
_POOL_CHANNELS = (64, 32, 16)  # channels of a pooling's tiles
_TILE_CHANNELS = 16  # channels that take as long as the rest of a pooling's tile
_MAX_ROWS = 16  # upper bound of the rows of an unfolding's tile
_ALIGN_BYTES = 16


@dataclass(frozen=True, eq=False)
class SegmentInput:
    """An input of a segment's graph.

    Attributes:
        name: name of the tensor.
        node: node whose value it holds.
        is_channels_last: True for a tensor (images, H, W, channels), False for (images, channels, H, W).
    """

    name: str
    node: fx.Node
    is_channels_last: bool = True

    def fill(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Copy a value into the tensor, whose padding is zero and stays so."""
        image = self._permute(value)
        tensor[..., : image.shape[3]].copy_(image)

    def find_view(self, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
        """Return a view of a value that can be the tensor itself, or None if a copy is needed."""
        image = self._permute(value)
        is_same = image.shape == tensor.shape and image.dtype == tensor.dtype and image.is_contiguous()
        return image if is_same and image.data_ptr() % _ALIGN_BYTES == 0 else None

    def _permute(self, value: torch.Tensor) -> torch.Tensor:
        image = value if value.dim() == 4 else value[:, :, None, None]
        return image.permute(0, 2, 3, 1) if self.is_channels_last else image


def pad_channels(channels: int) -> int:
    """Return a number of channels rounded up to a multiple of 8."""
    return -(-channels // _CHANNEL_STEP) * _CHANNEL_STEP


def list_inputs(segment: Segment, *, is_channels_last: bool) -> list[SegmentInput]:
    """Return the inputs of a segment's graph, given the layout of the images of a first layer."""
    narrow = [step for step in segment.steps if _is_narrow(segment, step)]
    wide = {
        node
        for step in segment.steps
        for node in (None if step in narrow else step.x, step.residual)
        if node in segment.inputs
    }
    images = [SegmentInput(node.name, node) for node in segment.inputs if node in wide]
    first = dict.fromkeys(step.x for step in narrow)
    return images + [SegmentInput(f"{node.name}.image", node, is_channels_last) for node in first]


def _is_narrow(segment: Segment, step: object) -> bool:
    """Return True if the taps of a row of a step become channels."""
    return isinstance(step, ConvStep) and step.weight.shape[1] < _CHANNEL_STEP and step.x in segment.inputs


def build_segment_graph(
    segment: Segment, shapes: Shapes, dtype: DType, workers: int, *, is_channels_last: bool = True
) -> Graph:
    """Build the graph of a segment for a number of workers.

    Tensors have the names of nodes; weights are ``<node>.weight`` and ``.bias``, images of a first layer
    ``<node>.image``.

    Raises:
        ShapeError: a convolution that the kernel does not support.
    """
    return _GraphBuilder(segment, shapes, dtype, workers, is_channels_last).build()


class _GraphBuilder:
    """Tensors and ops of a segment's graph as far as they are made."""

    def __init__(self, segment: Segment, shapes: Shapes, dtype: DType, workers: int, is_channels_last: bool) -> None:
        self._segment, self._shapes, self._dtype, self._workers = segment, shapes, dtype, workers
        self._is_channels_last = is_channels_last
        self._tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []

    def build(self) -> Graph:
        inputs = [each.name for each in list_inputs(self._segment, is_channels_last=self._is_channels_last)]
        for step in self._segment.steps:
            if isinstance(step, PoolStep):
                self._add_pool(step)
            else:
                inputs += self._add_convolution(step)
        outputs = tuple(node.name for node in self._segment.outputs)
        return Graph("convnet", (*self._tensors.values(),), (*self._ops,), (*inputs,), outputs)

    def _add(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._tensors.setdefault(name, Tensor(name, tuple(shape), self._dtype))

    def _get_image_shape(self, node: fx.Node) -> tuple[int, int, int, int]:
        """Return images, channels, height and width of a node's value; rows of a linear layer have one pixel."""
        images, channels, height, width = (*self._shapes[node], 1, 1)[:4]
        return images, channels, height, width

    def _add_image(self, node: fx.Node) -> Tensor:
        images, channels, height, width = self._get_image_shape(node)
        return self._add(node.name, (images, height, width, pad_channels(channels)))

    def _add_pool(self, step: PoolStep) -> None:
        tile = _select_pool_tile(self._get_image_shape(step.out), self._workers)
        x, out = self._add_image(step.x), self._add_image(step.out)
        if step.is_average:
            op = avg_pool2d(step.op, x, out, window=step.window, stride=step.stride, tile=tile)
        else:
            geometry = {"window": step.window, "stride": step.stride, "padding": step.padding}
            op = max_pool2d(step.op, x, out, **geometry, tile=tile)
        self._ops.append(op)

    def _add_convolution(self, step: ConvStep) -> list[str]:
        """Add a convolution, and return the names of its weights."""
        n, channels, taps_h, taps_w = step.weight.shape
        stride, padding, dilation = step.stride, step.padding, step.dilation
        if _is_narrow(self._segment, step):
            x = self._add_columns(step)
            channels, taps_w = channels * taps_w, 1
            stride, padding, dilation = (stride[0], 1), (padding[0], 0), (dilation[0], 1)
        else:
            x = self._add_image(step.x)
        weight = self._add(f"{step.op}.weight", (pad_channels(n), taps_h, taps_w, pad_channels(channels)))
        bias = None if step.bias is None else self._add(f"{step.op}.bias", (pad_channels(n),))
        op = conv2d(
            step.op,
            x,
            weight,
            self._add_image(step.out),
            bias=bias,
            residual=None if step.residual is None else self._add_image(step.residual),
            activation=Activation.RELU if step.has_relu else Activation.NONE,
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
        self._ops.append(op)
        return [weight.name] + ([] if bias is None else [bias.name])

    def _add_columns(self, step: ConvStep) -> Tensor:
        """Add the op that makes channels of the taps of a row, and return its result."""
        images, channels, height, width = self._get_image_shape(step.x)
        image = (images, height, width, channels) if self._is_channels_last else (images, channels, height, width)
        taps, columns = step.weight.shape[3], self._get_image_shape(step.out)[3]
        x = self._add(f"{step.x.name}.image", image)
        out = self._add(f"{step.op}.columns", (images, height, columns, pad_channels(channels * taps)))
        op = unfold_rows(
            f"{step.op}.unfold",
            x,
            out,
            taps=taps,
            stride=step.stride[1],
            padding=step.padding[1],
            dilation=step.dilation[1],
            channels_last=self._is_channels_last,
            rows=min(_MAX_ROWS, -(-images * height // self._workers)),
        )
        self._ops.append(op)
        return out


def _select_pool_tile(shape: tuple[int, int, int, int], workers: int) -> tuple[int, int]:
    """Return rows and channels of a pooling's tiles, given its result (images, channels, H, W).

    Items of workers follow one another, so that narrow tiles pay only as long as they make no further wave.
    """
    images, channels, height, _ = shape

    def estimate_cost(width: int) -> int:
        return -(-images * height * -(-channels // width) // workers) * (width + _TILE_CHANNELS)

    return 1, min(_POOL_CHANNELS, key=estimate_cost)


def list_weights(segment: Segment) -> dict[str, torch.Tensor]:
    """Return the weights and biases of a segment's graph, by tensor, in its layout."""
    found: dict[str, torch.Tensor] = {}
    for step in (each for each in segment.steps if isinstance(each, ConvStep)):
        weight = step.weight.permute(0, 2, 3, 1)  # (N, R, S, C)
        if _is_narrow(segment, step):
            weight = weight.flatten(2)[:, :, None]
        rows, channels = (pad_channels(extent) - extent for extent in (weight.shape[0], weight.shape[3]))
        found[f"{step.op}.weight"] = functional.pad(weight, (0, channels, 0, 0, 0, 0, 0, rows)).contiguous()
        if step.bias is not None:
            found[f"{step.op}.bias"] = functional.pad(step.bias, (0, rows)).contiguous()
    return found
