"""A proved plan as bytes, for processes that would otherwise plan and prove it again.

    facts      dispatch, workers, semaphores, texts; what ``check_coverage`` found, and the digest of the plan it is of
    columns    those of items and waits, as arrays in one archive of NumPy, none of them pickled

The graph is left out: whoever reads a record has it. ``verify.recalled`` makes a proof of what is read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from interlace.graph.dependencies import Hazard
from interlace.graph.graph import Graph, to_data
from interlace.graph.tensor import Region
from interlace.plan.coverage import Coverage
from interlace.plan.orderings import Edge, Ordering
from interlace.plan.plan import Dispatch, Items, Plan, Waits
from interlace.plan.stealing import Stealing, Victim

T = TypeVar("T", Items, Waits)


@dataclass(frozen=True)
class Found:
    """What enforces the dependencies of a plan, as a proof of it found.

    Attributes:
        coverage: that.
        of: the ``digest`` of the plan.
    """

    coverage: Coverage
    of: str


def digest(plan: Plan) -> str:
    """A hash of all that a proof is about: the graph but for its bodies, the dispatch, the counts and the arrays."""
    head = [to_data(plan.graph), _head(plan), len(plan.items), len(plan.waits)]
    found = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for table in (plan.items, plan.waits):
        for f in fields(table):
            column = np.ascontiguousarray(getattr(table, f.name))
            found.update(f"{f.name} {column.dtype} {column.shape} ".encode())
            found.update(column.data)
    return found.hexdigest()


def written(plan: Plan, coverage: Coverage) -> tuple[dict[str, Any], bytes]:
    """Facts and columns of a plan that was proved."""
    facts = {
        "plan": _head(plan),
        "of": digest(plan),
        "edges": coverage.edges,
        "by_wait": coverage.by_wait,
        "rests_on": [[ordering.value, _edge(edge)] for ordering, edge in coverage.rests_on],
    }
    archive = io.BytesIO()
    np.savez_compressed(archive, **_columns("items", plan.items), **_columns("waits", plan.waits))
    return facts, archive.getvalue()


def read(facts: Mapping[str, Any], columns: bytes, graph: Graph) -> tuple[Plan, Found]:
    """The plan that was ``written``, on its graph, and what was found of it.

    Raises:
        KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile: it is none, or has another form.
    """
    with np.load(io.BytesIO(columns), allow_pickle=False) as arrays:
        items, waits = _table(Items, arrays, "items"), _table(Waits, arrays, "waits")
    head = facts["plan"]
    plan = Plan(
        graph,
        Dispatch(head["dispatch"]),
        head["workers"],
        head["semaphores"],
        items,
        waits,
        head["policy"],
        head["order"],
        Stealing(head["most"], Victim(head["victim"])),
    )
    rests_on = tuple((Ordering(ordering), _edge_of(edge)) for ordering, edge in facts["rests_on"])
    return plan, Found(Coverage(facts["edges"], facts["by_wait"], rests_on), facts["of"])


def _head(plan: Plan) -> dict[str, Any]:
    return {
        "dispatch": plan.dispatch.value,
        "workers": plan.workers,
        "semaphores": plan.semaphores,
        "policy": plan.policy,
        "order": plan.order,
        "most": plan.stealing.most,
        "victim": plan.stealing.victim.value,
    }


def _columns(name: str, table: Items | Waits) -> dict[str, Any]:
    return {f"{name}.{f.name}": getattr(table, f.name) for f in fields(table)}


def _table(kind: type[T], arrays: Mapping[str, Any], name: str) -> T:
    return kind(*(arrays[f"{name}.{f.name}"] for f in fields(kind)))


def _edge(edge: Edge) -> dict[str, Any]:
    region = edge.region
    return {**vars(edge), "hazard": edge.hazard.name, "region": [region.tensor, region.lo, region.hi]}


def _edge_of(data: Mapping[str, Any]) -> Edge:
    tensor, lo, hi = data["region"]
    return Edge(**{**data, "hazard": Hazard[data["hazard"]], "region": Region(tensor, tuple(lo), tuple(hi))})
