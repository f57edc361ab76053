"""Retile a graph: make its ops again with other tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.core.errors import ParamError, PlanError
from interlace.graph.graph import Graph
from interlace.graph.op import Op, make_placement_key
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import Params


def retile(graph: Graph, tiles: Mapping[str, Params]) -> Graph:
    """Return the graph with some ops in other tiles; kernels make these ops again on the same tensors.

    Args:
        graph: graph in any tiling.
        tiles: by op name, params of its kernel that define its tile (``Schedule.tiles``).

    Raises:
        PlanError: ``tiles`` names an op that the graph does not have.
        ParamError: a kernel does not define how it is applied, or does not accept the params as a tiling.
        ShapeError: a kernel does not accept the tiles.
    """
    if not tiles:
        return graph
    known = [op.name for op in graph.ops]
    unknown = [name for name in tiles if name not in known]
    if unknown:
        raise PlanError(f"a schedule has tiles for ops {unknown}; graph {graph.name!r} has {known}")
    made: dict[object, Op] = {}
    return replace(graph, ops=tuple(_retile_op(graph, op, tiles.get(op.name, {}), made) for op in graph.ops))


def _retile_op(graph: Graph, op: Op, params: Params, made: dict[object, Op]) -> Op:
    """Return the op in other tiles; ops that differ only in names reuse the first one made, as those of layers do."""
    if not params:
        return op
    kernel = get_kernel(op)
    if kernel.make is None or not params.keys() <= {*kernel.tiling}:
        raise ParamError(
            f"op {op.name!r}: kernel {op.kernel!r} is tiled by params {list(kernel.tiling)}, not by {list(params)}"
        )
    tensors, params = {a.arg: graph.tensor(a.tensor) for a in op.accesses}, {**op.parameters, **params}
    alike = id(kernel), repr(params), make_placement_key(tensors)
    if alike not in made:
        made[alike] = kernel.remake_op(op, tensors, params)
    reads, writes = (
        tuple(replace(a, tensor=tensors[a.arg].name) for a in accesses)
        for accesses in (made[alike].reads, made[alike].writes)
    )
    return replace(made[alike], name=op.name, reads=reads, writes=writes)
