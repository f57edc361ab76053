"""Apply a setting to a graph: make its ops again in other tiles, and derive the choices that the setting stands for."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.errors import ParamError, PlanError
from interlace.graph.graph import Graph
from interlace.graph.op import Op, make_placement_key
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import Params
from interlace.planner.build import Choices
from interlace.policies.setting import Setting
from interlace.policies.sync import ConsumerSync


def retile(graph: Graph, setting: Setting) -> Graph:
    """Return the graph with its ops in the tiles of a setting; kernels make the ops again on the same tensors.

    Raises:
        PlanError: the setting names an op that the graph does not have.
        ParamError: a kernel does not define how it is applied, or does not accept the params as a tiling.
        ShapeError: a kernel does not accept the tiles.
    """
    unknown = [name for name, _ in setting.ops if name not in {op.name for op in graph.ops}]
    if unknown:
        raise PlanError(f"a setting names ops {unknown}; graph {graph.name!r} has {[op.name for op in graph.ops]}")
    made: dict[object, Op] = {}
    return replace(graph, ops=tuple(_retile_op(graph, op, dict(setting.op(op.name).params), made) for op in graph.ops))


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


def derive_choices(graph: Graph, setting: Setting, workers: int) -> Choices:
    """Return the choices of a setting for a graph in the setting's tiles."""
    orders = {op.name: setting.op(op.name).order for op in graph.ops}
    splits = {
        op.name: setting.op(op.name).make_split(op.tiles, op.reduction.chunks if op.reduction else 1, workers)
        for op in graph.ops
    }
    one = set(orders.values())
    return Choices(workers, policy=ConsumerSync(), order=one.pop() if len(one) == 1 else orders, split=splits)
