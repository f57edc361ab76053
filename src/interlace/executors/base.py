"""What every executor has in common."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.errors import GraphError, ShapeError
from interlace.graph.graph import Graph


def check_arguments(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless every input is given and every given tensor has its shape.

    Raises:
        GraphError: an input is missing or a name unknown.
        ShapeError: a shape differs from the graph's.
    """
    missing = [name for name in graph.inputs if name not in shapes]
    if missing:
        raise GraphError(f"graph {graph.name!r} needs inputs {missing}; pass them by name")
    for name, shape in shapes.items():
        expected = graph.tensor(name).shape
        if tuple(shape) != expected:
            raise ShapeError(
                f"tensor {name!r} has shape {tuple(shape)}; graph {graph.name!r} was built for {expected}"
            )
