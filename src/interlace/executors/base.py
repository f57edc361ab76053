"""What every executor has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.errors import CoverageError, GraphError, ShapeError, kind
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof, verify


def proved(name: str, keeps: frozenset[Ordering], plan: Plan | Proof) -> Proof:
    """The proof of a plan, made here unless it comes with it, if the executor ``name`` keeps what it rests on.

    Raises:
        PlanError: the plan is not safe, or is no plan.
        CoverageError: a dependency that only an ordering enforces which is not among ``keeps``.
    """
    proof = plan if isinstance(plan, Proof) else verify(plan)
    if Ordering.LAUNCH in keeps:
        return proof
    for ordering, edge in proof.rests_on:
        if ordering not in keeps:
            raise CoverageError(f"{edge}, but {_BROKEN[ordering].format(executor=name, op=edge.op)}")
    return proof


_BROKEN = {
    Ordering.WORKER: "only the order of one worker enforces that, and the {executor} executor keeps no such order; "
    "plan op {op!r} with a policy that posts, such as TileSync(), or use the serial or the persistent executor",
    Ordering.WAIT: "only a wait enforces that, and the {executor} executor does not wait; use another",
}


def by_name(tensors: object) -> dict[str, Any]:
    """A new dict of the tensors of a run. Raises GraphError if they do not come by name."""
    try:
        return dict(tensors)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise GraphError(f"tensors come by name, as {{'x': x, ...}}, not as {kind(tensors)}; pass a dict") from None


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
