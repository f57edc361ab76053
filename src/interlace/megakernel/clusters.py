"""Blocks of the megakernel in clusters (``csrc/cluster``): what a plan must satisfy, and which blocks form pairs.

Blocks whose tiles have the same weights request them from the L2 at about the same time. If the blocks run on
neighbouring SMs, the L2 appears to deliver such weights once: FFNs of 129 to 256 tokens take up to 2.5 % less time,
mostly where power is not the limit (benchmarks/notes/ffn.md, "Who is beside whom"). A cluster is how a launch can
request neighbouring SMs; its blocks need not load for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from interlace.core.errors import PlanError, TooManyWorkersError
from interlace.graph.access import Ints
from interlace.graph.graph import Graph
from interlace.kernels.bodies import Cluster
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.megakernel.compose import LoweredOp
from interlace.megakernel.table import DeviceTables
from interlace.plan.plan import Dispatch, Plan, find_latest_awaited


def check_clusters(plan: Plan, table: DeviceTables, cluster: Cluster) -> None:
    """Raise PlanError unless the blocks of each cluster open the same stages, group of items by group of items.

    A group is what the blocks of a cluster take together. Under ticket dispatch it is consecutive items of the
    sequence; with per-worker queues, the items at one position in the queues of consecutive workers.
    """
    if plan.dispatch not in (Dispatch.STATIC, Dispatch.TICKET):
        raise PlanError(
            f"a cluster of {cluster} takes items in groups, and {plan.dispatch.value} dispatch gives them one by one; "
            "use ticket or static dispatch"
        )
    if table.workers % cluster.blocks:
        raise PlanError(
            f"plan has {table.workers} workers, which are no clusters of {cluster}; plan for a multiple of "
            f"{cluster.blocks}"
        )
    if len(split := np.flatnonzero(table.items["parts"] > 1)):
        raise PlanError(
            f"item {plan.format_item(int(table.items['number'][split[0]]))} is a part of a tile, and in a cluster "
            "tiles are whole; plan with WholeTiles(), or no cluster"
        )
    groups = _form_groups(plan, table, cluster.blocks)
    rows = table.items[groups]
    same = np.all([rows[name] == rows[name][:, :1] for name in ("op", "l", "k_lo", "k_hi")], axis=(0, 2))
    for name, axis in (("i", 2), ("j", 1)):
        shared = rows[name].reshape(-1, cluster.rows, cluster.columns)
        same &= (shared == np.take(shared, [0], axis)).all(axis=(1, 2))
    if not same.all():
        names = [plan.format_item(int(n)) for n in rows["number"][np.argmin(same)]]
        raise PlanError(
            f"blocks of a cluster of {cluster} would take {' and '.join(names)}, which do not share tokens or weights "
            "so; order tiles so that those that do follow each other, or use no cluster"
        )
    _check_progress(plan, table, groups)


def _form_groups(plan: Plan, table: DeviceTables, blocks: int) -> Ints:
    """Return the groups as (n, blocks) rows of the table."""
    if plan.dispatch is Dispatch.TICKET:
        if len(plan.items) % blocks:
            raise PlanError(
                f"plan has {len(plan.items)} items, which are no groups of {blocks}; use tiles of which there are a "
                "multiple of them, or no cluster"
            )
        return np.arange(len(plan.items)).reshape(-1, blocks)
    length = np.diff(table.worker_rows).reshape(-1, blocks)
    if np.any(length != length[:, :1]):
        raise PlanError(
            f"lists of workers that are a cluster of {blocks} blocks are of unlike lengths; give each group of tiles "
            "to neighbours, or use no cluster"
        )
    return _align_neighbours(table, blocks)


def _align_neighbours(table: DeviceTables, blocks: int) -> Ints:
    """Return (n, blocks) rows at one position in the queues of neighbouring workers, where all of them have one."""
    first, length = table.worker_rows[:-1].reshape(-1, blocks), np.diff(table.worker_rows).reshape(-1, blocks)
    return np.concatenate([f + np.arange(n)[:, None] for f, n in zip(first, length.min(axis=1), strict=True)])


def _check_progress(plan: Plan, table: DeviceTables, groups: Ints) -> None:
    """Raise PlanError if an item waits for one that does not precede all of its group, which runs as one."""
    numbers = table.items["number"][groups]
    late = np.flatnonzero(find_latest_awaited(plan)[numbers].max(axis=1) >= numbers.min(axis=1))
    if len(late):
        names = [plan.format_item(int(n)) for n in numbers[late[0]]]
        raise PlanError(
            f"blocks of a cluster would take {' and '.join(names)} together, and one waits for what comes after "
            "another; order tiles so that they follow each other, or use no cluster"
        )


def cluster_ops(parts: Sequence[LoweredOp], graph: Graph, cluster: Cluster) -> list[LoweredOp]:
    """Return the parts of a launch, with operands shared by the blocks of a cluster.

    Raises:
        PlanError: the blocks of an op have nothing to load for each other.
        ShapeError: the operands of a tile cannot be divided into shares.
    """
    found = []
    for op, part in zip(graph.ops, parts, strict=True):
        if part.body.clustering is None:
            raise PlanError(
                f"op {op.name!r}: kernel {op.kernel!r} loads nothing for a cluster of {cluster}; use no cluster"
            )
        found.append(replace(part, body=part.body.join_cluster(op, cluster)))
    return found


def has_weight_pairs(plan: Plan, table: DeviceTables, bodies: Sequence[MegakernelBody]) -> bool:
    """Return whether most items of workers 0 and 1, 2 and 3, ... use the same weights as the neighbour's item."""
    if plan.dispatch is not Dispatch.STATIC or table.workers % 2:
        return False
    rows = table.items[_align_neighbours(table, 2)]
    same = np.array([body.clustering is not None for body in bodies])[rows["op"][:, 0]]
    for name in ("op", "j", "l", "k_lo"):
        same &= rows[name][:, 0] == rows[name][:, 1]
    return bool(2 * 2 * np.count_nonzero(same) > len(table.items))


def check_resident_blocks(clusters: int, cluster: int, blocks: int) -> None:
    """Raise TooManyWorkersError if more blocks must be resident than the clusters that the device places hold."""
    if clusters * cluster < blocks:
        raise TooManyWorkersError(
            f"the device keeps {clusters} clusters of {cluster} blocks of this kernel resident, and {blocks} blocks "
            "would wait for one another; plan for fewer workers, or use a smaller cluster"
        )
