"""Trace of a network for images: its convolutions with what follows them, in segments that may each be one launch.

A convolution takes the batch norm, the sum with a residual and the ReLU that follow it, where nothing else reads the
values between. A basic block of ResNet whose input has another shape:

    conv1 bn1 relu                  step 1
    conv2 bn2                       step 3, with the residual and the last ReLU
    downsample.0 downsample.1       step 2
    add relu

Pooling and linear layers may be steps, too; then a whole ResNet or VGG is one segment. Steps that follow one another
make a segment. Every other layer (grouped convolutions, other activations) runs by PyTorch and ends the segment if it
reads what a step of it reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from interlace.core.errors import GraphError
from interlace.nn.convnet.match import Shapes, drop_identities, find_convolutions, find_pools
from interlace.nn.convnet.steps import Segment, Step


@dataclass(frozen=True, eq=False)
class NetworkTrace:
    """A traced network.

    Attributes:
        module: the network as a graph of nodes.
        program: segments, and nodes that PyTorch runs, in the order in which they run.
        shapes: shape of each node's tensor, for the traced input.
    """

    module: fx.GraphModule
    program: list[Segment | fx.Node]
    shapes: Shapes

    @property
    def segments(self) -> list[Segment]:
        """The segments, in order."""
        return [part for part in self.program if isinstance(part, Segment)]

    def count_steps(self) -> int:
        """Return the number of steps of all segments."""
        return sum(len(segment.steps) for segment in self.segments)

    def list_library_layers(self) -> list[str]:
        """Return the layers that PyTorch runs, as ``maxpool (MaxPool2d)``."""
        return [
            _describe_node(self.module, node)
            for node in self.program
            if isinstance(node, fx.Node) and node.op.startswith("call")
        ]


def trace_network(model: nn.Module, x: torch.Tensor, *, joins_layers: bool = True) -> NetworkTrace:
    """Trace a network on an input; without ``joins_layers``, PyTorch runs all but its convolutions.

    Raises:
        GraphError: the network is in training mode, its control flow depends on data, or it fails on the input.
    """
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise GraphError(f"{training[0]} is in training mode; call model.eval() before, since batch norms are folded")
    try:
        module = fx.symbolic_trace(model)
    except Exception as error:
        raise GraphError(f"{type(model).__name__} cannot be traced: {_get_reason(error)}; run it by PyTorch") from error
    try:
        with torch.no_grad():
            ShapeProp(module).propagate(x)
    except Exception as error:
        raise GraphError(f"{type(model).__name__} fails on {tuple(x.shape)}: {_get_reason(error)}") from error
    shapes = {
        node: tuple(node.meta["tensor_meta"].shape)
        for node in module.graph.nodes
        if isinstance(getattr(node.meta.get("tensor_meta"), "shape", None), torch.Size)
    }
    if joins_layers:
        drop_identities(module, shapes)
    return NetworkTrace(module, _divide(module, shapes, joins_layers), shapes)


def _get_reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _describe_node(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return f"{node.target} ({type(module.get_submodule(str(node.target))).__name__})"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{node.name} ({name})"


def _divide(module: fx.GraphModule, shapes: Shapes, joins_layers: bool) -> list[Segment | fx.Node]:
    """Return segments and the nodes between them."""
    convolutions, covered = find_convolutions(module, shapes, with_linear=joins_layers)
    steps: dict[fx.Node, Step] = {**convolutions, **(find_pools(module, shapes) if joins_layers else {})}
    program: list[Segment | fx.Node] = []
    current = Segment()
    touched: set[fx.Node] = set()  # what the current segment reads and writes; PyTorch's layers may work in place
    for node in module.graph.nodes:
        if node in steps:
            step = steps[node]
            current.steps.append(step)
            touched.update(each for each in (step.x, step.residual, node) if each is not None)
        elif node not in covered:
            if current.steps and not touched.isdisjoint(node.all_input_nodes):
                program.append(current)
                current, touched = Segment(), set()
            program.append(node)
    if current.steps:
        program.append(current)
    for segment in program:
        if isinstance(segment, Segment):
            _find_ports(segment, covered | steps.keys())
    return program


def _find_ports(segment: Segment, inside: set[fx.Node]) -> None:
    """Find the inputs and outputs of a segment."""
    own = {step.out for step in segment.steps}
    chains = {node for step in segment.steps for node in _list_chain(step, inside)}
    read = (node for step in segment.steps for node in (step.x, step.residual) if node is not None)
    segment.inputs = list(dict.fromkeys(node for node in read if node not in own))
    segment.outputs = [step.out for step in segment.steps if any(user not in chains for user in step.out.users)]


def _list_chain(step: Step, inside: set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the nodes of a step, from its result back to its convolution."""
    node = step.out
    while True:
        yield node
        before = [n for n in node.all_input_nodes if n not in (step.x, step.residual) and n in inside]
        if not before:
            return
        (node,) = before
