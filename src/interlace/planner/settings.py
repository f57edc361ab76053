"""What a plan under a setting is built of: a graph's ops made anew in other tiles, and the choices it stands for."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.errors import ParamError, PlanError
from interlace.graph.graph import Graph
from interlace.graph.op import Op, placed
from interlace.kernels.base import kernel_of
from interlace.kernels.bodies import Params
from interlace.planner.build import Choices
from interlace.policies.setting import Setting
from interlace.policies.sync import ConsumerSync


def retiled(graph: Graph, setting: Setting) -> Graph:
    """The same graph with its ops in the tiles of a setting; each is made by its kernel on the same tensors.

    Raises:
        PlanError: the setting names an op that the graph does not have.
        ParamError: a kernel that does not say how it is applied, or params that it does not take as a tiling.
        ShapeError: tiles that it does not take.
    """
    unknown = [name for name, _ in setting.ops if name not in {op.name for op in graph.ops}]
    if unknown:
        raise PlanError(f"a setting names ops {unknown}; graph {graph.name!r} has {[op.name for op in graph.ops]}")
    made: dict[object, Op] = {}
    return replace(graph, ops=tuple(_retiled(graph, op, dict(setting.op(op.name).params), made) for op in graph.ops))


def _retiled(graph: Graph, op: Op, params: Params, made: dict[object, Op]) -> Op:
    """The op in other tiles; of ops that are made alike, as those of layers are, all but the first take its."""
    if not params:
        return op
    kernel = kernel_of(op)
    if kernel.make is None or not params.keys() <= {*kernel.tiling}:
        raise ParamError(
            f"op {op.name!r}: kernel {op.kernel!r} is tiled by params {list(kernel.tiling)}, not by {list(params)}"
        )
    tensors, params = {a.arg: graph.tensor(a.tensor) for a in op.accesses}, {**op.parameters, **params}
    alike = id(kernel), repr(params), placed(tensors)
    if alike not in made:
        made[alike] = kernel.applied(op, tensors, params)
    reads, writes = (
        tuple(replace(a, tensor=tensors[a.arg].name) for a in accesses)
        for accesses in (made[alike].reads, made[alike].writes)
    )
    return replace(made[alike], name=op.name, reads=reads, writes=writes)


def choices(graph: Graph, setting: Setting, workers: int) -> Choices:
    """What a setting chooses for a graph that is tiled by it."""
    orders = {op.name: setting.op(op.name).order for op in graph.ops}
    splits = {
        op.name: setting.op(op.name).split(op.tiles, op.reduction.chunks if op.reduction else 1, workers)
        for op in graph.ops
    }
    one = set(orders.values())
    return Choices(workers, policy=ConsumerSync(), order=one.pop() if len(one) == 1 else orders, split=splits)
