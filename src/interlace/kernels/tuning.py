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
    """Whether hand-offs weigh more than anything else in one launch of a graph: many ops stand one behind the other.

    What is best then is not what is best for two long products; measured on whole decode steps
    (benchmarks/notes/decode.md).
    """
    return count_longest_chain(graph) > _FEW_OPS


def count_longest_chain(graph: Graph) -> int:
    """Ops of the longest chain of them in which each reads what the one before leaves."""
    behind: dict[str, int] = {}  # of the longest that ends in a tensor
    for op in graph.ops:
        longest = 1 + max((behind.get(access.tensor, 0) for access in op.reads), default=0)
        behind |= dict.fromkeys((access.tensor for access in op.writes), longest)
    return max(behind.values(), default=0)


def accept_any(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """A check that every tile passes."""


@dataclass(frozen=True)
class Tuning:
    """Rules over extents and a device. They see a whole graph, and speak of the kernel's own ops in it.

    Attributes:
        select_default: graph, device -> the setting that is taken without a search.
        iter_likely: graph, device -> few settings, in unlike tiles, among which a planner chooses by prediction.
        iter_settings: graph, device -> many, of which a search predicts all and measures some.
        check: graph, op, device -> raises ShapeError unless the op's tile fits the device, where the body does not.
    """

    select_default: Callable[[Graph, DeviceSpec], Setting]
    iter_likely: Callable[[Graph, DeviceSpec], Iterator[Setting]]
    iter_settings: Callable[[Graph, DeviceSpec], Iterator[Setting]]
    check: Callable[[Graph, Op, DeviceSpec], None] = accept_any
