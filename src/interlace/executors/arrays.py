"""Checks of NumPy arrays: inputs of the reference executor, and results of references of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interlace.core.arguments import format_value
from interlace.core.errors import DTypeError, GraphError, ShapeError
from interlace.executors.base import check_arguments
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region
from interlace.kernels.bodies import Array


def check_arrays(graph: Graph, tensors: Mapping[str, Any]) -> None:
    """Raise unless these are arrays of real numbers for the inputs of a graph, and nothing else.

    Raises:
        GraphError: an input is missing or not an array, or something else is passed.
        ShapeError: an array has another shape.
        DTypeError: an array does not hold real numbers.
    """
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray):
            raise GraphError(
                f"tensor {name!r} is {format_value(value)}; the reference executor takes NumPy arrays, such as "
                "np.array(values), or tensor.double().cpu().numpy() of a tensor of PyTorch"
            )
        if not np.can_cast(value.dtype, np.float64, "same_kind"):
            raise DTypeError(f"tensor {name!r} holds {value.dtype}; pass real numbers, such as np.float32")
    check_arguments(graph, {name: value.shape for name, value in tensors.items()})
    more = [name for name in tensors if name not in graph.inputs]
    if more:
        raise GraphError(
            f"tensors {more} are no inputs of graph {graph.name!r}; the reference executor keeps memory of its own and "
            f"returns the outputs, so pass {list(graph.inputs)} alone"
        )


def check_results(op: Op, tile: int, wanted: Mapping[str, Region], values: object) -> Mapping[str, Array]:
    """Return what the reference of an op returned for a tile, after checking that these are the regions it writes.

    Raises:
        GraphError: the regions are others.
        ShapeError: a region has another shape.
    """
    if not isinstance(values, Mapping) or values.keys() != wanted.keys():
        found = f"regions of {list(values)}" if isinstance(values, Mapping) else format_value(values)
        raise GraphError(
            f"{op.format_tile(tile)}: the reference of kernel {op.kernel!r} returns {found}; return a dict with the "
            f"region of each argument that the op writes, {list(wanted)}"
        )
    for arg, region in wanted.items():
        shape = tuple(max(hi - lo, 0) for lo, hi in zip(region.lo, region.hi, strict=True))
        if np.shape(values[arg]) != shape:
            raise ShapeError(
                f"{op.format_tile(tile)}: the reference of kernel {op.kernel!r} returns {arg!r} of shape "
                f"{np.shape(values[arg])}, but writes {region}; return {shape}"
            )
    return values
