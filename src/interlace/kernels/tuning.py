"""What a kernel knows of its own tiles, for one kind of body: which fit a device, which to take, which to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.policies.setting import Setting

_FEW_OPS = 8


def is_chain(graph: Graph) -> bool:
    """Whether hand-overs weigh more than anything else in one launch of a graph: many ops stand one behind the other.

    What is best then is not what is best for two long products; measured on whole decode steps (docs/tried.md).
    """
    return longest_chain(graph) > _FEW_OPS


def longest_chain(graph: Graph) -> int:
    """Ops of the longest chain of them in which each reads what the one before leaves."""
    behind: dict[str, int] = {}  # of the longest that ends in a tensor
    for op in graph.ops:
        longest = 1 + max((behind.get(access.tensor, 0) for access in op.reads), default=0)
        behind |= dict.fromkeys((access.tensor for access in op.writes), longest)
    return max(behind.values(), default=0)


def anything(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """A check that every tile passes."""


@dataclass(frozen=True)
class Tuning:
    """Rules over extents and a device. They see a whole graph, and speak of the kernel's own ops in it.

    Attributes:
        default: graph, device -> the setting that is taken without a search.
        likely: graph, device -> few settings, in unlike tiles, among which a planner chooses by prediction.
        settings: graph, device -> many, of which a search predicts all and measures some.
        check: graph, op, device -> raises ShapeError unless the op's tile fits the device, where the body does not.
    """

    default: Callable[[Graph, DeviceSpec], Setting]
    likely: Callable[[Graph, DeviceSpec], Iterator[Setting]]
    settings: Callable[[Graph, DeviceSpec], Iterator[Setting]]
    check: Callable[[Graph, Op, DeviceSpec], None] = anything
