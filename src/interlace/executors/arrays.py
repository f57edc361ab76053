"""What the reference executor takes: NumPy arrays, of a graph's inputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interlace.core.arguments import shown
from interlace.core.errors import DTypeError, GraphError
from interlace.executors.base import check_arguments
from interlace.graph.graph import Graph


def check_arrays(graph: Graph, tensors: Mapping[str, Any]) -> None:
    """Raise unless these are arrays of real numbers for the inputs of a graph, and nothing else.

    Raises:
        GraphError: an input is missing or no array, or something else is given.
        ShapeError: an array of another shape.
        DTypeError: an array holds no real numbers.
    """
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray):
            raise GraphError(
                f"tensor {name!r} is {shown(value)}; the reference executor takes NumPy arrays, such as "
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
