"""Steps of a network for images: layers with what follows them, which a launch or PyTorch's ops compute."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class ConvStep:
    """A convolution, or a linear layer as one whose kernel covers the image, with what follows it.

    Attributes:
        name: name of the layer's module.
        op: name of the layer's node, unique in the network.
        x: node of its input.
        residual: node that is added before the ReLU; None if there is none.
        out: node of its result.
        weight: (N, C, R, S), with the batch norm folded in.
        bias: (N,), or None.
        stride, padding, dilation: along height and width.
        has_relu: True if it ends in a ReLU.
        is_linear: True for a linear layer, whose result is (images, N).
    """

    name: str
    op: str
    x: fx.Node
    residual: fx.Node | None
    out: fx.Node
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    has_relu: bool
    is_linear: bool = False

    def run(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Compute the step in PyTorch's own ops."""
        if self.is_linear:
            value = functional.linear(x.flatten(1), self.weight.flatten(1), self.bias)
        else:
            value = functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        if residual is not None:
            value = value + residual
        return torch.relu(value) if self.has_relu else value


@dataclass(frozen=True, eq=False)
class PoolStep:
    """A max-pooling, or an average pooling without padding.

    Attributes:
        name, op: names of its module and its node.
        x, out: nodes of its input and its result.
        window, stride, padding: along height and width.
        is_average: True for an average pooling.
    """

    name: str
    op: str
    x: fx.Node
    out: fx.Node
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    is_average: bool = False

    @property
    def residual(self) -> None:
        """None, as of a convolution without a residual."""

    def run(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Compute the step in PyTorch's own ops."""
        if self.is_average:
            return functional.avg_pool2d(x, self.window, self.stride)
        return functional.max_pool2d(x, self.window, self.stride, self.padding)


Step = ConvStep | PoolStep


@dataclass(eq=False)
class Segment:
    """Steps that follow one another, and may be one launch.

    Attributes:
        steps: the steps, in program order.
        inputs: nodes that they read from outside.
        outputs: nodes that are read outside.
    """

    steps: list[Step] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
