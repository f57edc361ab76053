"""A kernel's tuning rules for one kind of body: tiles that fit a device, the default, and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan.plan import Dispatch
from interlace.policies.tiling import Tilings

_FEW_OPS = 8


def is_chain(graph: Graph) -> bool:
    """Return True if hand-offs dominate the megakernel of a graph, because it has a long chain of ops.

    The best tiling then differs from that of two long products; measured on whole decode steps
    (benchmarks/notes/decode.md).
    """
    return count_longest_chain(graph) > _FEW_OPS


def count_longest_chain(graph: Graph) -> int:
    """Return the length in ops of the longest chain in which each op reads the output of the previous one."""
    behind: dict[str, int] = {}  # length of the longest chain that ends in a tensor
    for op in graph.ops:
        longest = 1 + max((behind.get(access.tensor, 0) for access in op.reads), default=0)
        behind |= dict.fromkeys((access.tensor for access in op.writes), longest)
    return max(behind.values(), default=0)


def accept_any(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """Accept every tile."""


@dataclass(frozen=True)
class Tuning:
    """Tuning rules by extents and device. They receive a whole graph and cover the kernel's own ops in it.

    Attributes:
        select_default: graph, device -> the tilings used without a search.
        iter_likely: graph, device -> a few different tilings, among which a planner chooses by prediction.
        iter_candidates: graph, device -> many tilings; a search predicts all of them and measures some.
        check: graph, op, device -> raises ShapeError unless the op's tile fits the device, if the body does not check
            it.
        dispatch: dispatch measured to be fastest for graphs with the kernel, unless hand-offs or fix-ups ask for a
            static schedule; None if that is ticket dispatch.
    """

    select_default: Callable[[Graph, DeviceSpec], Tilings]
    iter_likely: Callable[[Graph, DeviceSpec], Iterator[Tilings]]
    iter_candidates: Callable[[Graph, DeviceSpec], Iterator[Tilings]]
    check: Callable[[Graph, Op, DeviceSpec], None] = accept_any
    dispatch: Dispatch | None = None
