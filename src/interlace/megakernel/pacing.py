"""How the megakernel is paced: how its blocks obtain items, and how many bytes of weights each keeps in flight.

Both depend on what ops cost compared with the hand-offs between them (benchmarks/notes/decode.md):

- Long weight streams: more bytes in flight reach memory's rate more reliably, and tickets balance the workers.
- Short ops: every byte in flight delays the hand-offs after it, and per-worker queues save the tickets' atomics.
- Products that take longer than the loads of their weights: few fences wait, and a late stage stalls the tensor cores,
  so the ring is filled completely.
"""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import BodyKind
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.kernels.tuning import count_longest_chain, is_chain
from interlace.megakernel.parts import build_bodies, has_only_cooperative_fixups
from interlace.plan.plan import Dispatch
from interlace.policies.schedule import Schedule

#: Weights in flight per block: the bytes that saturate memory; for short ops, the bytes that an SM's share of memory
#: bandwidth delivers in this time.
_IN_FLIGHT_BYTES, _IN_FLIGHT_S = 96 << 10, 1.75e-6
_SHORT_CHAIN_OPS = (
    3  # longest chain that begins with a norm in which tickets were at least as fast as per-worker queues
)
_SHORT_OP_S = 20e-6  # time to load an op's weights, on average over the ops that have weights


def select_dispatch(graph: Graph, device: DeviceSpec, chosen: Schedule | None = None) -> Dispatch:
    """Choose a static schedule (per-worker queues), the dispatch that a kernel's tuning names, or tickets.

    A static schedule is chosen

    - for a long chain, and where all rings together hold all weights: workers that claim tickets while they have room
      would take two items of an op, and others none. An op with more tiles than workers whose tuning names a dispatch
      is excepted from the latter;
    - where ops without pre-wait loads are between ops with such loads: workers would claim several items of the former
      and wait in each before they claim the next. A norm before two products is excepted, because it waits for nothing;
    - where it allows cooperative fix-up of all tiles that are split.
    """
    bodies = build_bodies(graph)
    written = {access.tensor for op in graph.ops for access in op.writes}
    few = count_longest_chain(graph) <= _SHORT_CHAIN_OPS
    idle = (
        not body.loads.inputs_before_waits and not (few and written.isdisjoint(a.tensor for a in op.reads))
        for op, body in zip(graph.ops, bodies, strict=True)
    )
    mixed = any(idle) and any(body.loads.prefetchable_inputs for body in bodies)
    rules = [get_kernel(op).tunings.get(BodyKind.MEGAKERNEL) for op in graph.ops]
    named = [rule.dispatch if rule else None for rule in rules]
    many = any(own and op.tiles > device.sms for op, own in zip(graph.ops, named, strict=True))
    weights_bytes = sum(nbytes for _, nbytes in _select_weighted_ops(graph, bodies))
    held = not many and 0 < weights_bytes <= device.sms * device.smem_bytes
    shared = chosen is not None and has_only_cooperative_fixups(graph, chosen)
    if is_chain(graph) or held or mixed or shared:
        return Dispatch.STATIC
    return next((own for own in named if own), Dispatch.TICKET)


def select_bytes_in_flight(graph: Graph, device: DeviceSpec) -> int:
    """Return the bytes of weights in flight per block; all of the ring if the ops are compute-bound."""
    weighty = _select_weighted_ops(graph, build_bodies(graph))
    memory_s = sum(nbytes for _, nbytes in weighty) / device.dram_bytes_per_s
    products_s = sum(op.flops * op.tiles / device.flops_per_s(graph.find_compute_dtype(op)) for op, _ in weighty)
    if is_chain(graph) or (weighty and products_s <= memory_s <= len(weighty) * _SHORT_OP_S):
        return int(_IN_FLIGHT_S * device.dram_bytes_per_s / device.sms)
    return device.smem_bytes if products_s > memory_s else _IN_FLIGHT_BYTES


def _select_weighted_ops(graph: Graph, bodies: Sequence[MegakernelBody]) -> list[tuple[Op, int]]:
    """Return the ops that load weights ahead of their waits, with the bytes of these weights."""
    found = []
    for op, body in zip(graph.ops, bodies, strict=True):
        nbytes = sum(
            graph.tensor(access.tensor).nbytes for access in op.reads if access.arg in body.loads.prefetchable_inputs
        )
        found += [(op, nbytes)] if nbytes else []
    return found
