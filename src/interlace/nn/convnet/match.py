"""Layers of a traced network that kernels compute, each with what follows it, as steps."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx, nn

from interlace.nn.convnet.steps import ConvStep, PoolStep

#: Shape of each node's tensor.
Shapes = Mapping[fx.Node, tuple[int, ...]]

_CHANNEL_STEP = 8
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_RELUS = (torch.relu, torch.relu_, nn.functional.relu)
_IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout2d)


def drop_identities(module: fx.GraphModule, shapes: Shapes) -> None:
    """Remove layers that change nothing at inference: dropout, adaptive pooling to the size that an image has.

    Flattening ahead of a linear layer is removed, too: such a layer then reads an image, and is a convolution whose
    kernel covers it.
    """
    for node in list(module.graph.nodes):
        if _is_identity(module, node, shapes):
            node.replace_all_uses_with(node.all_input_nodes[0])
        elif _is_flattened_image(module, node, shapes):
            for user in [each for each in node.users if isinstance(get_module(module, each), nn.Linear)]:
                user.replace_input_with(node, node.all_input_nodes[0])
        else:
            continue
        if not node.users:
            module.graph.erase_node(node)


def _is_identity(module: fx.GraphModule, node: fx.Node, shapes: Shapes) -> bool:
    layer = get_module(module, node)
    if isinstance(layer, nn.AdaptiveAvgPool2d):  # its result is a copy, so nothing else may read what it reads
        x = node.all_input_nodes[0]
        return node in shapes and shapes[node] == shapes.get(x) and len(x.users) == 1
    return isinstance(layer, _IDENTITIES)


def _is_flattened_image(module: fx.GraphModule, node: fx.Node, shapes: Shapes) -> bool:
    """Return True if a node makes one row of each image."""
    flattens = isinstance(get_module(module, node), nn.Flatten)
    flattens |= node.op == "call_function" and node.target is torch.flatten
    flattens |= node.op == "call_method" and node.target == "flatten"
    if not flattens or node not in shapes:
        return False
    before = shapes.get(node.all_input_nodes[0], ())
    return len(before) == 4 and len(shapes[node]) == 2 and shapes[node][0] == before[0]


def find_convolutions(
    module: fx.GraphModule, shapes: Shapes, *, with_linear: bool
) -> tuple[dict[fx.Node, ConvStep], set[fx.Node]]:
    """Return each convolution, and each linear layer of rows or images, by the node of its result.

    Returns also all other nodes that these steps cover.
    """
    order = {node: n for n, node in enumerate(module.graph.nodes)}
    steps: dict[fx.Node, ConvStep] = {}
    covered: set[fx.Node] = set()
    claimed: set[fx.Node] = set()  # sums that a step takes
    for node in module.graph.nodes:
        layer, geometry = get_module(module, node), ((1, 1), (0, 0), (1, 1))
        if node not in shapes:
            continue
        if isinstance(layer, nn.Conv2d) and _is_supported(layer):
            weight, geometry = layer.weight.detach(), (layer.stride, layer.padding, layer.dilation)  # type: ignore[assignment]
        elif with_linear and isinstance(layer, nn.Linear) and len(shapes[node]) == 2:
            image = (*shapes[node.all_input_nodes[0]], 1, 1)[1:4]
            weight = layer.weight.detach().reshape(-1, *image)
        else:
            continue
        bias, chain = None if layer.bias is None else layer.bias.detach(), [node]
        norm = _find_only_user(node)
        norm_module = get_module(module, norm)
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
        x, out, is_linear = node.all_input_nodes[0], chain[-1], isinstance(layer, nn.Linear)
        names = str(node.target), node.name
        steps[out] = ConvStep(*names, x, residual, out, weight, bias, *geometry, has_relu, is_linear)
        covered.update(chain)
    return steps, covered - steps.keys()


def find_pools(module: fx.GraphModule, shapes: Shapes) -> dict[fx.Node, PoolStep]:
    """Return each pooling that a kernel computes, by its node."""
    found = {}
    for node in module.graph.nodes:
        pool = get_module(module, node)
        if not isinstance(pool, nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d) or node not in shapes:
            continue
        x = node.all_input_nodes[0]
        geometry = _find_pool_geometry(pool, shapes[x], shapes[node])
        if geometry is not None and len(shapes[x]) == 4 and shapes[x][1] % _CHANNEL_STEP == 0:
            is_average = not isinstance(pool, nn.MaxPool2d)
            found[node] = PoolStep(str(node.target), node.name, x, node, *geometry, is_average)
    return found


def _find_pool_geometry(
    pool: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Return window, stride and padding of a pooling with these shapes, or None if no kernel computes it."""
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        height, width = (a // b for a, b in zip(before[-2:], after[-2:], strict=True))
        is_even = (height * after[-2], width * after[-1]) == before[-2:]
        return ((height, width), (height, width), (0, 0)) if is_even else None
    window, stride, padding = map(_as_pair, (pool.kernel_size, pool.stride, pool.padding))
    if isinstance(pool, nn.MaxPool2d):
        is_known = not pool.return_indices and _as_pair(pool.dilation) == (1, 1)
    else:
        is_known = padding == (0, 0) and pool.divisor_override is None
    return (window, stride, padding) if is_known and not pool.ceil_mode else None


def _as_pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def get_module(module: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    """Return the module that a node calls, or None if it calls none."""
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
        return isinstance(get_module(module, node), nn.ReLU)
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
