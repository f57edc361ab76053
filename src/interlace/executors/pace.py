"""How the one launch is paced: how its blocks take items, and how many bytes of weights are under way in each.

Both depend on what ops cost beside the hand-overs between them (docs/tried.md). Where an op streams its weights for
long, more of them under way bring memory's rate more surely, and drawing evens out who is ahead. Where ops are short,
what is under way delays every hand-over behind it, and lists spare the draws. Where products take longer than weights,
few fences wait and a stage that comes late is one in which nothing is multiplied: then the ring is filled as it can be.
"""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.devices import DeviceSpec
from interlace.executors.parts import all_share, bodies_of
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.bodies import WalkBody
from interlace.kernels.tuning import is_chain, longest_chain
from interlace.plan.plan import Dispatch
from interlace.planner.build import Choices

#: Of weights in one block: what saturates memory; where ops are short, what an SM's share of it delivers in so long.
_IN_FLIGHT_BYTES, _IN_FLIGHT_S = 96 << 10, 1.75e-6
_FEW_OPS = 3  # of a chain that begins with a norm, in which tickets were as fast as lists or faster
_SHORT_S = 20e-6  # in which an op's weights come, in the mean of all that have some


def dispatch_of(graph: Graph, device: DeviceSpec, chosen: Choices | None = None) -> Dispatch:
    """Lists or tickets.

    Lists for a long chain: workers that draw while they have room take two items of an op, and others none. So they do
    where all rings together hold all weights. They would take several items that load nothing ahead, too, and wait with
    each of them before they draw what stands behind; so lists where such stand among others that load ahead, but for a
    norm before two products, which waits for nobody. And lists where they let the parts of all tiles that are split
    share their sums.
    """
    bodies = bodies_of(graph)
    written = {access.tensor for op in graph.ops for access in op.writes}
    few = longest_chain(graph) <= _FEW_OPS
    idle = (
        not (body.independent or body.early) and not (few and written.isdisjoint(a.tensor for a in op.reads))
        for op, body in zip(graph.ops, bodies, strict=True)
    )
    mixed = any(idle) and any(body.independent for body in bodies)
    held = 0 < sum(nbytes for _, nbytes in _weighty(graph, bodies)) <= device.sms * device.smem_bytes
    shared = chosen is not None and all_share(graph, chosen)
    return Dispatch.STATIC if is_chain(graph) or held or mixed or shared else Dispatch.TICKET


def in_flight_bytes(graph: Graph, device: DeviceSpec) -> int:
    """Of weights, in one block; as many as it holds where products take longer than memory does for their weights."""
    weighty = _weighty(graph, bodies_of(graph))
    memory_s = sum(nbytes for _, nbytes in weighty) / device.dram_bytes_per_s
    products_s = sum(op.flops * op.tiles / device.flops_per_s(graph.dtype_of(op)) for op, _ in weighty)
    if is_chain(graph) or (weighty and products_s <= memory_s <= len(weighty) * _SHORT_S):
        return int(_IN_FLIGHT_S * device.dram_bytes_per_s / device.sms)
    return device.smem_bytes if products_s > memory_s else _IN_FLIGHT_BYTES


def _weighty(graph: Graph, bodies: Sequence[WalkBody]) -> list[tuple[Op, int]]:
    """Ops that load weights ahead of their waits, and bytes of these."""
    found = []
    for op, body in zip(graph.ops, bodies, strict=True):
        nbytes = sum(graph.tensor(access.tensor).nbytes for access in op.reads if access.arg in body.independent)
        found += [(op, nbytes)] if nbytes else []
    return found
