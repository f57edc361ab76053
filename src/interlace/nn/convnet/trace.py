"""Trace of a network for images: its convolutions with what follows them, in segments that may each be one launch.

A convolution takes the batch norm, the sum with a residual and the ReLU that follow it, where nothing else reads the
values between. A basic block of ResNet whose input has another shape:

    conv1 bn1 relu                  step 1
    conv2 bn2                       step 3, with the residual and the last ReLU
    downsample.0 downsample.1       step 2
    add relu

Max-pooling may be a step, too. Steps that follow one another make a segment. Every other layer (linear, other pooling,
grouped convolutions) runs by PyTorch and ends the segment if it reads what a step of it reads or writes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from interlace.core.errors import GraphError

_CHANNEL_STEP = 8
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELUS = (torch.relu, torch.relu_, nn.functional.relu)


@dataclass(frozen=True, eq=False)
class ConvStep:
    """A convolution with what follows it.

    Attributes:
        name: name of the convolution's module.
        op: name of the convolution's node, unique in the network.
        x: node of its input.
        residual: node that is added before the ReLU; None if there is none.
        out: node of its result.
        weight: (N, C, R, S), with the batch norm folded in.
        bias: (N,), or None.
        stride, padding, dilation: along height and width.
        has_relu: True if it ends in a ReLU.
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

    @property
    def along_width(self) -> tuple[int, int, int]:
        """Stride, padding and dilation along the width."""
        return self.stride[1], self.padding[1], self.dilation[1]


@dataclass(frozen=True, eq=False)
class PoolStep:
    """A max-pooling.

    Attributes:
        name, op: names of its module and its node.
        x, out: nodes of its input and its result.
        window, stride, padding: along height and width.
    """

    name: str
    op: str
    x: fx.Node
    out: fx.Node
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def residual(self) -> None:
        """None, as of a convolution without a residual."""


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
    shapes: Mapping[fx.Node, tuple[int, ...]]

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


def trace_network(model: nn.Module, x: torch.Tensor, *, joins_pools: bool = True) -> NetworkTrace:
    """Trace a network on an input; without ``joins_pools``, PyTorch runs its max-poolings.

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
    return NetworkTrace(module, _divide(module, shapes, joins_pools), shapes)


def _get_reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _describe_node(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return f"{node.target} ({type(module.get_submodule(str(node.target))).__name__})"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{node.name} ({name})"


def _divide(
    module: fx.GraphModule, shapes: Mapping[fx.Node, tuple[int, ...]], joins_pools: bool
) -> list[Segment | fx.Node]:
    """Return segments and the nodes between them."""
    convolutions, covered = _find_steps(module, shapes)
    steps: dict[fx.Node, Step] = {**convolutions, **(_find_pools(module, shapes) if joins_pools else {})}
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


def _find_steps(
    module: fx.GraphModule, shapes: Mapping[fx.Node, tuple[int, ...]]
) -> tuple[dict[fx.Node, ConvStep], set[fx.Node]]:
    """Return each step by the node of its result, and all nodes that steps cover."""
    order = {node: n for n, node in enumerate(module.graph.nodes)}
    steps: dict[fx.Node, ConvStep] = {}
    covered: set[fx.Node] = set()
    claimed: set[fx.Node] = set()  # sums that a step takes
    for node in module.graph.nodes:
        conv = _get_module(module, node)
        if not isinstance(conv, nn.Conv2d) or not _is_supported(conv) or node not in shapes:
            continue
        weight, bias, chain = conv.weight.detach(), None if conv.bias is None else conv.bias.detach(), [node]
        norm = _find_only_user(node)
        norm_module = _get_module(module, norm)
        if norm is not None and isinstance(norm_module, nn.BatchNorm2d) and norm_module.track_running_stats:
            weight, bias = _fold_norm(weight, bias, norm_module)
            chain.append(norm)
        residual = None
        total = _find_only_user(chain[-1])
        if total is not None and total not in claimed:
            other = _find_addend(total, chain[-1], shapes)
            if other is not None and order[other] < order[total]:
                residual = other
                claimed.add(total)
                chain.append(total)
        relu = _find_only_user(chain[-1])
        has_relu = relu is not None and _is_relu(module, relu)
        if relu is not None and has_relu:
            chain.append(relu)
        x = node.all_input_nodes[0]
        geometry = conv.stride, conv.padding, conv.dilation
        out = chain[-1]
        steps[out] = ConvStep(str(node.target), node.name, x, residual, out, weight, bias, *geometry, has_relu)  # type: ignore[arg-type]
        covered.update(chain)
    return steps, covered - steps.keys()


def _find_pools(module: fx.GraphModule, shapes: Mapping[fx.Node, tuple[int, ...]]) -> dict[fx.Node, PoolStep]:
    """Return each max-pooling that the kernel computes, by its node."""
    found = {}
    for node in module.graph.nodes:
        pool = _get_module(module, node)
        if not isinstance(pool, nn.MaxPool2d) or node not in shapes or pool.return_indices or pool.ceil_mode:
            continue
        window, stride, padding, dilation = map(_as_pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation))
        x = node.all_input_nodes[0]
        if dilation == (1, 1) and len(shapes[x]) == 4 and shapes[x][1] % _CHANNEL_STEP == 0:
            found[node] = PoolStep(str(node.target), node.name, x, node, window, stride, padding)
    return found


def _as_pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _get_module(module: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    if node is None or node.op != "call_module":
        return None
    found: nn.Module = module.get_submodule(str(node.target))
    return found


def _is_supported(conv: nn.Conv2d) -> bool:
    """Return True if the kernel computes a convolution; 3 input channels, as of a first layer, are padded."""
    plain = conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    narrow = conv.in_channels < _CHANNEL_STEP
    return plain and conv.out_channels % _CHANNEL_STEP == 0 and (narrow or conv.in_channels % _CHANNEL_STEP == 0)


def _find_only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _find_addend(total: fx.Node, value: fx.Node, shapes: Mapping[fx.Node, tuple[int, ...]]) -> fx.Node | None:
    """Return what a node adds to a value of equal shape; None if it does anything else."""
    adds = (total.op == "call_function" and total.target in _ADDITIONS) or (
        total.op == "call_method" and total.target in ("add", "add_")
    )
    operands = total.args
    if not adds or len(operands) != 2 or total.kwargs or any(not isinstance(each, fx.Node) for each in operands):
        return None
    first, second = operands
    other = second if first is value else first
    if not isinstance(other, fx.Node) or other is value or shapes.get(other) != shapes.get(value):
        return None
    return other


def _is_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(_get_module(module, node), nn.ReLU)
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in _RELUS


def _fold_norm(
    weight: torch.Tensor, bias: torch.Tensor | None, norm: nn.BatchNorm2d
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a convolution with a batch norm folded in, computed in float32 at least."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    wide = torch.promote_types(weight.dtype, torch.float32)
    gain = torch.rsqrt(norm.running_var.to(wide) + norm.eps)
    if norm.weight is not None:
        gain = gain * norm.weight.detach().to(wide)
    shift = -norm.running_mean.to(wide) if bias is None else bias.to(wide) - norm.running_mean.to(wide)
    shift = shift * gain
    if norm.bias is not None:
        shift = shift + norm.bias.detach().to(wide)
    return (weight.to(wide) * gain[:, None, None, None]).to(weight.dtype), shift.to(weight.dtype)
