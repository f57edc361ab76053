"""Bounds of a graph: which apply to it, and how far predicted traffic is from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.planner.bounds import (
    BoundedQuantity,
    Convolution,
    Gemm,
    Label,
    TrafficBound,
    bound_attention,
    bound_chain,
    bound_compulsory,
    bound_convolutions,
    bound_pebbling,
)
from interlace.planner.conv_mappings import map_conv_pair, map_convolution
from interlace.planner.mappings import OROJENESIS, TrafficCurve, map_chain, map_gemm
from interlace.planner.predict import Traffic

_ATTENTION = "matmul", "softmax", "matmul"
_CONVOLUTION = "conv2d"


@dataclass(frozen=True)
class BoundDistance:
    """Bound and the predicted traffic that it limits.

    Attributes:
        bound: lower bound.
        moved_bytes: predicted bytes of what the bound counts.
    """

    bound: TrafficBound
    moved_bytes: int

    @property
    def ratio(self) -> float:
        """Predicted bytes as a multiple of the bound."""
        return self.moved_bytes / self.bound.bytes if self.bound.bytes else 1.0


def compute_graph_bounds(graph: Graph, traffic: Traffic, device: DeviceSpec) -> tuple[TrafficBound, ...]:
    """Return the traffic bounds of a graph.

    They are those of a chain of matmuls, of attention, or of a chain of convolutions, or else the compulsory ones.
    """
    gemms, element_bytes = find_gemms(graph), graph.tensors[0].dtype.itemsize
    if gemms and is_attention(graph):
        scores = gemms[0]
        return bound_attention(scores.m, scores.n, scores.k, 1, element_bytes, device, key_heads=1)
    if gemms:
        return bound_chain(gemms, element_bytes, device)
    if convs := find_convolutions(graph):
        return bound_convolutions(convs, element_bytes, device)
    return bound_compulsory(graph.name, traffic.compulsory_bytes, traffic.written_bytes)


def compute_tiling_bounds(graph: Graph, device: DeviceSpec) -> tuple[TrafficBound, ...]:
    """Return what the best schedule of tiles in one L2 moves, as far as it is known.

    The red-blue pebble bound of a chain of matmuls where its leading term counts, and the best tiling of one or two
    matmuls, the two of attention included, and of one or two convolutions. Loads of biases and residuals are not
    counted.
    """
    gemms, element_bytes = find_gemms(graph), graph.tensors[0].dtype.itemsize
    found: list[TrafficBound] = []
    if gemms and not is_attention(graph):
        pebbling = bound_pebbling(gemms, element_bytes, device)
        found += [pebbling] if pebbling else []
    if mapped := _map_graph(graph):
        name, curve = mapped
        least = curve.evaluate(device.l2_bytes / element_bytes)
        if least is not None:
            both = BoundedQuantity.LOADS_AND_STORES
            found.append(TrafficBound(name, least * element_bytes, Label.MAPPINGS, both, OROJENESIS))
    return tuple(found)


def _map_graph(graph: Graph) -> tuple[str, TrafficCurve] | None:
    """Return the name and the curve of the best tiling of a graph, or None if it is not known."""
    gemms, convs = find_gemms(graph), find_convolutions(graph)
    if len(gemms) == 1:
        return "matmul", map_gemm(*gemms)
    if len(gemms) == 2:
        return "attention" if is_attention(graph) else "2 chained matmuls", map_chain(*gemms)
    if len(convs) == 1:
        return "convolution", map_convolution(*convs)
    if len(convs) == 2:
        is_fusible = all(conv.stride == 1 for conv in convs)
        name = "2 chained convolutions"
        return name, map_conv_pair(*convs) if is_fusible else map_convolution(convs[0]) + map_convolution(convs[1])
    return None


def compute_distances(bounds: Iterable[TrafficBound], traffic: Traffic) -> tuple[BoundDistance, ...]:
    """Return each bound with the predicted bytes that it limits."""
    moved = {
        BoundedQuantity.LOADS: traffic.dram_read,
        BoundedQuantity.LOADS_AND_STORES: traffic.dram_read + traffic.written_bytes,
    }
    return tuple(BoundDistance(bound, moved[bound.counts]) for bound in bounds)


def find_nearest_bound(bounds: Iterable[TrafficBound], traffic: Traffic) -> BoundDistance:
    """Return the bound that traffic comes nearest to without falling below; the bounds include a safe one."""
    distances = compute_distances(bounds, traffic)
    reached = [distance for distance in distances if distance.ratio >= 1 or distance.bound.label is Label.SAFE]
    return min(reached, key=lambda distance: distance.ratio)


def is_attention(graph: Graph) -> bool:
    """Return True for a matmul, a softmax over its result, and a matmul of that."""
    return tuple(op.kernel for op in graph.ops) == _ATTENTION and bool(find_gemms(graph))


def find_gemms(graph: Graph) -> tuple[Gemm, ...]:
    """Return the matmuls of a graph if each op is a matmul that reads the previous result, else an empty tuple.

    Between the two matmuls of attention there is a softmax.
    """
    last, found = None, []
    attends = tuple(op.kernel for op in graph.ops) == _ATTENTION
    for op in graph.ops:
        tensors = {access.arg: access.tensor for access in op.accesses}
        if last is not None and tensors.get("x") != last:
            return ()
        if op.kernel == "matmul":
            found.append(_measure_matmul(op, "gate" in tensors))
        elif not attends:
            return ()
        last = tensors.get("out")
    return tuple(found)


def find_convolutions(graph: Graph) -> tuple[Convolution, ...]:
    """Return the convolutions of a graph if each op is one that reads the previous result, else an empty tuple.

    They have square filters of odd taps, one stride, as much padding as keeps the extents, and no dilation.
    """
    last, found = None, []
    for op in graph.ops:
        tensors = {access.arg: access.tensor for access in op.accesses}
        conv = _measure_convolution(op) if op.kernel == _CONVOLUTION else None
        if conv is None or (last is not None and tensors.get("x") != last):
            return ()
        found.append(conv)
        last = tensors.get("out")
    return tuple(found)


def _measure_convolution(op: Op) -> Convolution | None:
    """Return the sizes of a convolution, or None if ``Convolution`` cannot express them."""
    names = "R", "S", "STRIDE_H", "STRIDE_W", "PAD_H", "PAD_W", "DILATION_H", "DILATION_W"
    taps, width, stride, stride_w, *padding, dilation_h, dilation_w = (int(op.param(name)) for name in names)
    is_square = width == taps and stride_w == stride and padding == [taps // 2] * 2
    if not is_square or (dilation_h, dilation_w) != (1, 1) or taps % 2 == 0 or stride > taps:
        return None
    images, rows, columns, channels, out_channels = (int(op.param(name)) for name in ("IMAGES", "H", "W", "C", "N"))
    return Convolution(images, rows, columns, channels, out_channels, taps, stride)


def _measure_matmul(op: Op, is_gated: bool) -> Gemm:
    sizes = {name: int(op.param(name)) for name in ("M", "N", "K")}
    return Gemm(sizes["M"], sizes["N"] * (2 if is_gated else 1), sizes["K"])
