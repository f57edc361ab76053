"""Each op's part in the megakernel: its body, and its tile for the number of warpgroups of the launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from interlace.core.errors import PlanError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import build_megakernel_body, require
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.megakernel.compose import LoweredOp
from interlace.megakernel.ll_edges import NO_LL_EDGES, LLEdges
from interlace.plan.verify import Proof
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK, WholeTiles


def _get_tensors(graph: Graph, op: Op) -> dict[str, Tensor]:
    """Return the tensors of an op by argument."""
    return {access.arg: graph.tensor(access.tensor) for access in op.accesses}


#: Graphs whose declarations are kept: more than the tilings that a planner compares at a time.
_MAX_CACHED_GRAPHS = 32


class _Identity:
    """Cache key of a graph: the object itself, since graphs of many ops are costly to hash and to compare."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.graph is self.graph


@dataclass(frozen=True, eq=False)
class GraphBodies:
    """Declarations of a graph's ops to the megakernel, before there is a plan.

    Planner, predictor and executor ask the same questions (how a graph is tiled, paced and dispatched, which fix-ups
    it allows), so answers are found once a graph.

    Attributes:
        graph: the graph, in its present tiles.
        bodies: megakernel body of each op.
    """

    graph: Graph
    bodies: tuple[MegakernelBody, ...]

    @cached_property
    def warpgroups(self) -> int:
        """Consumer warpgroups per block; see ``count_warpgroups``."""
        return _count_warpgroups(self.graph, self.bodies)

    @cached_property
    def whole_tiles(self) -> tuple[LoweredOp, ...]:
        """Each op with whole tiles and no LL words, for questions that come before a plan."""
        return tuple(lower_ops(self.graph))


@lru_cache(maxsize=_MAX_CACHED_GRAPHS)
def _declare(key: _Identity) -> GraphBodies:
    return GraphBodies(key.graph, tuple(_build_bodies(key.graph)))


def get_graph_bodies(graph: Graph) -> GraphBodies:
    """Return the declarations of a graph's ops, found once for the graph object."""
    return _declare(_Identity(graph))


def build_bodies(graph: Graph) -> tuple[MegakernelBody, ...]:
    """Return the megakernel body of each op."""
    return get_graph_bodies(graph).bodies


def _build_bodies(graph: Graph) -> list[MegakernelBody]:
    bodies = []
    written: set[str] = set()
    for op in graph.ops:
        settled = frozenset(access.arg for access in op.reads if access.tensor not in written)
        bodies.append(build_megakernel_body(op, _get_tensors(graph, op), settled))
        written |= {access.tensor for access in op.writes}
    return bodies


def lower_ops(
    graph: Graph,
    split: Sequence[int] | None = None,
    cooperative: Collection[int] = (),
    ll_edges: LLEdges = NO_LL_EDGES,
    min_extents: Sequence[int] | None = None,
) -> list[LoweredOp]:
    """Return the part of each op in the megakernel.

    Args:
        split: most parts of a tile of each op.
        cooperative: ops with cooperative fix-up.
        ll_edges: tensors that use the LL protocol.
        min_extents: extent along k of each op's shortest item, which decides whether bodies load weights ahead of
            waits; None if unknown.
    """
    warpgroups = count_warpgroups(graph)
    split = [1] * len(graph.ops) if split is None else split
    parts: list[LoweredOp] = []
    for o, (op, body, count) in enumerate(zip(graph.ops, build_bodies(graph), split, strict=True)):
        if o in ll_edges.ops:
            assert body.ll.build_body is not None
            body = body.ll.build_body(ll_edges.get_ll(o))
        shared = body.tiling.find_cooperative_tile(op, count, warpgroups) if o in cooperative else None
        tile = body.tiling.build_tile(op, count, warpgroups) if shared is None else shared
        parts.append(LoweredOp(body, tile, graph.find_compute_dtype(op), op.name))
    parts = _cache_resident_vectors(graph, parts)
    return parts if min_extents is None else _prefetch_weights(graph, parts, min_extents)


def _cache_resident_vectors(graph: Graph, parts: Sequence[LoweredOp]) -> list[LoweredOp]:
    """Let loaders cache a vector in shared memory if all ops that could do so have one code, tensor and params."""
    tensors = [_get_tensors(graph, op) for op in graph.ops]
    vectors = [
        part.body.loads.find_resident_vector(op, own) for op, part, own in zip(graph.ops, parts, tensors, strict=True)
    ]
    users = {
        (part.code, own[vector.arg], op.params)
        for op, part, own, vector in zip(graph.ops, parts, tensors, vectors, strict=True)
        if vector is not None
    }
    if len(users) != 1:
        return [*parts]
    return [
        part if vector is None else replace(part, tile=vector.apply_to(part.tile))
        for part, vector in zip(parts, vectors, strict=True)
    ]


def _prefetch_weights(graph: Graph, parts: Sequence[LoweredOp], least: Sequence[int]) -> list[LoweredOp]:
    """Use tiles that load weights ahead of waits where bodies have them; ops with shared code still share it.

    Ops that multiply the same tokens are excluded: these are queries, keys and values, and the attention after them
    loads more than a ring holds (benchmarks/notes/decode.md).
    """
    alike: dict[object, int] = {}
    for part, extent in zip(parts, least, strict=True):
        alike[part.code] = min(extent, alike.get(part.code, extent))
    read = [None, *(op.accesses[0].tensor for op in graph.ops), None]
    made = []
    for o, (op, part) in enumerate(zip(graph.ops, parts, strict=True)):
        alone = read[o + 1] not in (read[o], read[o + 2])
        build = part.body.tiling.build_prefetching_tile
        if build is not None and alone:
            part = replace(part, tile=build(op, part.tile, alike[part.code]))
        made.append(part)
    return made


def find_cooperative_ops(graph: Graph, split: Sequence[int]) -> list[bool]:
    """Return for each op whether its body supports cooperative fix-up, given the parts of each of its tiles."""
    warpgroups = count_warpgroups(graph)
    return [
        count > 1 and body.tiling.find_cooperative_tile(op, count, warpgroups) is not None
        for op, body, count in zip(graph.ops, build_bodies(graph), split, strict=True)
    ]


def has_only_cooperative_fixups(graph: Graph, chosen: Schedule) -> bool:
    """Return whether tiles are split and, under per-worker queues, all would use cooperative fix-up.

    Each part must have a worker of its own.
    """
    splits = [chosen.split.get(op.name) if isinstance(chosen.split, Mapping) else chosen.split for op in graph.ops]
    cut = [split is not None and split != WholeTiles() for split in splits]
    parts = [split.parts if isinstance(split, SplitK) else 1 for split in splits]
    if not any(cut) or any(
        some and body.tiling.build_cooperative_tile is None for some, body in zip(cut, build_bodies(graph), strict=True)
    ):
        return False
    able = find_cooperative_ops(graph, parts)
    fit = (op.tiles * count <= chosen.workers for op, count in zip(graph.ops, parts, strict=True))
    return all(not some or (can and fits) for some, can, fits in zip(cut, able, fit, strict=True))


def check_order(proof: Proof, parts: Sequence[int]) -> None:
    """Raise if tiles are split in a plan that waits for later items.

    The last part of a tile waits for the others, which no proof covers: a fix-up belongs to the executor. That adds no
    cycle where every item waits for earlier items of the sequence, because the last part then does so, too. A static
    plan may wait for later items where the workers' queues allow it, and then it may deadlock:

        worker 0   aside, part 1   up               aside, part 1 waits for part 0, which comes after down
        worker 1   down            aside, part 0    down waits for up, which comes after aside, part 1

    Args:
        parts: most parts of a tile of each op.
    """
    split = next((op.name for op, count in zip(proof.plan.graph.ops, parts, strict=True) if count > 1), None)
    if split is not None and not proof.in_sequence:
        raise PlanError(
            f"op {split!r} is split, and in the megakernel the last part of a tile waits for the others; items of this "
            "plan wait for later ones of its sequence, with which that may never end. Order producers before "
            f"consumers, leave {split!r} whole, or use the persistent executor"
        )


def count_warpgroups(graph: Graph) -> int:
    """Return the consumer warpgroups per block: those that a tiling is for; else one, or two if a body needs them.

    Raises:
        ShapeError: a tiling is for more warpgroups than some op supports.
    """
    return get_graph_bodies(graph).warpgroups


def _count_warpgroups(graph: Graph, bodies: Sequence[MegakernelBody]) -> int:
    declared = [body.tiling.warpgroups for body in bodies]
    required = [own.count_required(op) for op, own in zip(graph.ops, declared, strict=True) if own.count_required]
    found = max(required, default=1 + any(own.prefers_two for own in declared))
    for op, body in zip(graph.ops, bodies, strict=True):
        require(
            found <= body.max_warpgroups,
            f"op {op.name!r} runs in {4 * body.max_warpgroups} warps at most, and an op of its launch is tiled for "
            f"{4 * found}; give that fewer",
        )
    return found


def check_operands(graph: Graph) -> None:
    """Raise unless the megakernel can load what the ops read, and all loads ahead of waits depend on no earlier op."""
    written: dict[str, str] = {}
    for op in graph.ops:
        written = {access.tensor: op.name for access in op.writes} | written
    before: dict[str, str] = {}
    for op, body in zip(graph.ops, build_bodies(graph), strict=True):
        body.check(op, _get_tensors(graph, op))
        for access in op.reads:
            writer = (written if access.arg in body.loads.prefetchable_inputs else before).get(access.tensor)
            if writer is not None and access.arg in body.loads.inputs_before_waits:
                raise PlanError(
                    f"op {op.name!r} loads {access.arg} {access.tensor!r} ahead of every wait, but op {writer!r} "
                    "writes it; use the persistent executor, which loads it after its waits"
                )
        before = {access.tensor: op.name for access in op.writes} | before
