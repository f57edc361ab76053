"""Lowering: from a proof to all that one launch is made of, found once and then only read.

    tables        the plan's items and waits as rows for the device (``megakernel/table``)
    ops           each op's body and the program of its tiles (``megakernel/parts``)
    ll_edges      tensors that are handed off by the LL protocol, proved as launched (``megakernel/ll_proof``)
    cooperative   ops whose parts reduce their tiles together (``megakernel/fix_up``)
    spawning      rows of spawn dispatch (``megakernel/spawning``)
    source        the CUDA source, and how many stages shared memory holds (``megakernel/compose``)

Questions that come before a plan (which tilings make a launch, how it is paced) are answered by what ops declare
(``parts.GraphBodies``), not by lowering.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.kernels.bodies import NO_CLUSTER
from interlace.megakernel.clusters import check_clusters, cluster_ops
from interlace.megakernel.compose import LoweredOp, MegakernelSource, compose, number_codes
from interlace.megakernel.dispatch import DispatchCode, select_code
from interlace.megakernel.fix_up import CooperativeFixup, count_parts
from interlace.megakernel.ll_edges import LLEdges
from interlace.megakernel.ll_proof import prove_ll
from interlace.megakernel.options import RunOptions
from interlace.megakernel.pacing import select_bytes_in_flight
from interlace.megakernel.partials import place_partials
from interlace.megakernel.parts import check_order, find_cooperative_ops, get_graph_bodies, lower_ops
from interlace.megakernel.queues import check_capacity
from interlace.megakernel.spawning import SpawnTables
from interlace.megakernel.table import DeviceTables, build_worker_tables
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A proved plan as one launch on a device.

    Attributes:
        proof: proof of the plan.
        device: device of the launch.
        options: run options.
        warpgroups: consumer warpgroups of a block.
        ops: body and tile program of each op.
        tables: items and waits as rows for the device.
        ll_edges: tensors that use the LL protocol.
        cooperative_ops: ops with cooperative fix-up.
        spawning: rows of spawn dispatch; None under other dispatches.
    """

    proof: Proof
    device: DeviceSpec
    options: RunOptions
    warpgroups: int
    ops: tuple[LoweredOp, ...]
    tables: DeviceTables
    ll_edges: LLEdges
    cooperative_ops: Collection[int]
    spawning: SpawnTables | None

    @property
    def dispatch(self) -> DispatchCode:
        """The code of the plan's dispatch."""
        return select_code(self.proof.plan.dispatch, termination=self.options.termination)

    @cached_property
    def source(self) -> MegakernelSource:
        """The CUDA source of the launch, and its shared memory.

        Raises:
            PlanError: shared memory does not hold two stages next to the scratch.
        """
        plan, options = self.proof.plan, self.options
        return compose(
            self.ops,
            self.warpgroups,
            self.device.smem_bytes,
            select_bytes_in_flight(plan.graph, self.device),
            dispatch=plan.dispatch,
            dependent_launch=options.dependent_launch,
            stealing=plan.stealing,
            blocks=self.device.sms,
            termination=options.termination,
            cluster=options.cluster,
        )


def lower(proof: Proof, device: DeviceSpec, options: RunOptions) -> LoweredGraph:
    """Return a proved plan as one launch on a device.

    Raises:
        PlanError: split tiles in a plan that waits for later items, tensors that cannot use the LL protocol although
            the options name them, or a cluster that the plan does not suit.
        ShapeError: tiles that the warpgroups cannot hold.
        QueueOverflowError: the queue may need to hold more items than ``RunOptions.queue_capacity``.
    """
    plan, graph = proof.plan, proof.plan.graph
    declared = get_graph_bodies(graph)
    fixup = CooperativeFixup.from_proof(proof, find_cooperative_ops(graph, count_parts(plan)))
    ll_edges = prove_ll(plan, declared.bodies, options)
    chunked = [body.loads.is_chunked for body in declared.bodies]
    tables = build_worker_tables(plan, chunked, parts_wait=True, cooperative=fixup, ll_edges=ll_edges)
    check_order(proof, tables.parts.tolist())
    ops = lower_ops(graph, tables.parts.tolist(), fixup.ops, ll_edges, tables.min_extents.tolist())
    if options.cluster != NO_CLUSTER:
        check_clusters(plan, tables, options.cluster)
        ops = cluster_ops(ops, graph, options.cluster)
    tables.items["code"] = np.array(number_codes(ops))[tables.items["op"]]
    spawning = SpawnTables.from_plan(plan, tables) if plan.dispatch is Dispatch.SPAWN else None
    check_capacity(plan, tables, spawning, options.queue_capacity)
    if spawning is None:
        tables = _place_partials(plan, ops, tables, ll_edges)
        dispatch = select_code(plan.dispatch, termination=options.termination)
        tables.items["code"] |= dispatch.flag_rows(tables)
    else:
        tables = spawning.table
    return LoweredGraph(
        *(proof, device, options, declared.warpgroups, tuple(ops), tables, ll_edges, fixup.ops, spawning)
    )


def _place_partials(plan: Plan, ops: list[LoweredOp], tables: DeviceTables, ll_edges: LLEdges) -> DeviceTables:
    """Return the tables with the rows of the workspace that hold split-K partials; LL words order only themselves."""
    items, extents = plan.items, np.array([op.k_extent for op in plan.graph.ops], np.int64)
    split = {*items.op[items.k_hi - items.k_lo < extents[items.op]].tolist()}
    elements = [op.tile.partial_elements if number in split else 0 for number, op in enumerate(ops)]
    left = ll_edges.drop_polled_waits(plan.waits, plan)
    launched = replace(items, post=ll_edges.compute_posts(left, plan))
    shared = [op.tile.shared_elements for op in ops]
    return place_partials(tables, elements, shared, replace(plan, items=launched, waits=left))
