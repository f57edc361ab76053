"""Each op's part in the megakernel: its body, and its tile for the number of warpgroups of the launch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from interlace.core.errors import PlanError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import require, walk_body
from interlace.kernels.bodies import WalkBody
from interlace.megakernel.compose import Part
from interlace.megakernel.ll_edges import NONE, HandedOver
from interlace.plan.verify import Proof
from interlace.planner.build import Choices
from interlace.policies.splits import SplitK, Whole


def _tensors(graph: Graph, op: Op) -> dict[str, Tensor]:
    """Return the tensors of an op by argument."""
    return {access.arg: graph.tensor(access.tensor) for access in op.accesses}


def bodies_of(graph: Graph) -> list[WalkBody]:
    """Return the megakernel body of each op."""
    bodies = []
    written: set[str] = set()
    for op in graph.ops:
        settled = frozenset(access.arg for access in op.reads if access.tensor not in written)
        bodies.append(walk_body(op, _tensors(graph, op), settled))
        written |= {access.tensor for access in op.writes}
    return bodies


def parts_of(
    graph: Graph,
    split: Sequence[int] | None = None,
    shares: Collection[int] = (),
    words: HandedOver = NONE,
    least: Sequence[int] | None = None,
) -> list[Part]:
    """Return the part of each op in the megakernel.

    Args:
        split: most parts of a tile of each op.
        shares: ops with cooperative fix-up.
        words: tensors that use the LL protocol.
        least: extent along k of each op's shortest item, which decides whether bodies load weights ahead of waits; None
            if unknown.
    """
    warpgroups = warpgroups_of(graph)
    split = [1] * len(graph.ops) if split is None else split
    parts: list[Part] = []
    for o, (op, body, count) in enumerate(zip(graph.ops, bodies_of(graph), split, strict=True)):
        if o in words.ops:
            assert body.worded is not None
            body = body.worded(words.of(o))
        shared = body.shared(op, count, warpgroups) if o in shares and body.shared is not None else None
        tile = body.tile(op, count, warpgroups) if shared is None else shared
        parts.append(Part(body, tile, graph.dtype_of(op), op.name))
    parts = _resident(graph, parts)
    return parts if least is None else _ahead(graph, parts, least)


def _resident(graph: Graph, parts: Sequence[Part]) -> list[Part]:
    """Let loaders cache a vector in shared memory if all ops that could do so have one code, tensor and params."""
    kept = {
        (part.code, _tensors(graph, op)[part.body.resident.arg], op.params)
        for op, part in zip(graph.ops, parts, strict=True)
        if part.body.resident is not None
    }
    if len(kept) != 1:
        return [*parts]
    return [
        part if part.body.resident is None else replace(part, tile=part.body.resident.of(part.tile)) for part in parts
    ]


def _ahead(graph: Graph, parts: Sequence[Part], least: Sequence[int]) -> list[Part]:
    """Use tiles that load weights ahead of waits where bodies have them; ops with shared code still share it.

    Ops that multiply the same tokens are excluded: these are queries, keys and values, and the attention after them
    loads more than a ring holds (docs/tried.md).
    """
    alike: dict[object, int] = {}
    for part, extent in zip(parts, least, strict=True):
        alike[part.code] = min(extent, alike.get(part.code, extent))
    read = [None, *(op.accesses[0].tensor for op in graph.ops), None]
    made = []
    for o, (op, part) in enumerate(zip(graph.ops, parts, strict=True)):
        alone = read[o + 1] not in (read[o], read[o + 2])
        if part.body.ahead is not None and alone:
            part = replace(part, tile=part.body.ahead(op, part.tile, alike[part.code]))
        made.append(part)
    return made


def able_to_share(graph: Graph, split: Sequence[int]) -> list[bool]:
    """Return for each op whether its body supports cooperative fix-up, given the parts of each of its tiles."""
    warpgroups = warpgroups_of(graph)
    return [
        body.shared is not None and count > 1 and body.shared(op, count, warpgroups) is not None
        for op, body, count in zip(graph.ops, bodies_of(graph), split, strict=True)
    ]


def all_share(graph: Graph, chosen: Choices) -> bool:
    """Return whether tiles are split and, under per-worker queues, all would use cooperative fix-up.

    Each part must have a worker of its own.
    """
    splits = [chosen.split.get(op.name) if isinstance(chosen.split, Mapping) else chosen.split for op in graph.ops]
    cut = [split is not None and split != Whole() for split in splits]
    parts = [split.parts if isinstance(split, SplitK) else 1 for split in splits]
    if not any(cut) or any(some and body.shared is None for some, body in zip(cut, bodies_of(graph), strict=True)):
        return False
    able = able_to_share(graph, parts)
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
            f"op {split!r} is split, and in the one launch the last part of a tile waits for the others; items of this "
            "plan wait for later ones of its sequence, with which that may never end. Order producers before "
            f"consumers, leave {split!r} whole, or use the persistent executor"
        )


def warpgroups_of(graph: Graph) -> int:
    """Return the consumer warpgroups per block: those that a tiling is for; else one, or two if a body needs them.

    Raises:
        ShapeError: a tiling is for more warpgroups than some op supports.
    """
    bodies = bodies_of(graph)
    wanted = [body.warpgroups(op) for op, body in zip(graph.ops, bodies, strict=True) if body.warpgroups]
    found = max(wanted, default=1 + any(body.wide for body in bodies))
    for op, body in zip(graph.ops, bodies, strict=True):
        require(
            found <= body.most_warpgroups,
            f"op {op.name!r} runs in {4 * body.most_warpgroups} warps at most, and an op of its launch is tiled for "
            f"{4 * found}; give that fewer",
        )
    return found


def check_operands(graph: Graph) -> None:
    """Raise unless the megakernel can load what the ops read, and all loads ahead of waits depend on no earlier op."""
    written: dict[str, str] = {}
    for op in graph.ops:
        written = {access.tensor: op.name for access in op.writes} | written
    before: dict[str, str] = {}
    for op, body in zip(graph.ops, bodies_of(graph), strict=True):
        body.check(op, _tensors(graph, op))
        for access in op.reads:
            writer = (written if access.arg in body.independent else before).get(access.tensor)
            if writer is not None and access.arg in (*body.independent, *body.early):
                raise PlanError(
                    f"op {op.name!r} loads {access.arg} {access.tensor!r} ahead of every wait, but op {writer!r} "
                    "writes it; use the persistent executor, which loads it after its waits"
                )
        before = {access.tensor: op.name for access in op.writes} | before
