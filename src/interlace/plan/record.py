"""A proved plan as bytes, for processes that would otherwise plan and prove it again.

    facts      dispatch, workers, semaphores, texts; the result of ``check_coverage``, and the digest of its plan
    columns    columns of items and waits, as arrays in one NumPy archive without pickles

The graph is left out, because readers of a record have it. ``verify.recalled`` turns the record into a proof.
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
    """Coverage of a plan as an earlier proof established it.

    Attributes:
        coverage: orderings that enforce the plan's dependencies.
        of: ``digest`` of the plan.
    """

    coverage: Coverage
    of: str


def digest(plan: Plan) -> str:
    """Hash everything that a proof is about: the graph without its bodies, the dispatch, the counts and the arrays."""
    head = [to_data(plan.graph), _head(plan), len(plan.items), len(plan.waits)]
    found = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for table in (plan.items, plan.waits):
        for f in fields(table):
            column = np.ascontiguousarray(getattr(table, f.name))
            found.update(f"{f.name} {column.dtype} {column.shape} ".encode())
            found.update(column.data)
    return found.hexdigest()


def written(plan: Plan, coverage: Coverage) -> tuple[dict[str, Any], bytes]:
    """Return the facts and columns of a plan that was proved."""
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
    """Read the plan that ``written`` converted, on its graph, and the coverage that was found for it.

    Raises:
        Exception: not a record, or one of another form; NumPy's reader of archives may raise anything.
    """
    with np.load(io.BytesIO(columns), allow_pickle=False) as arrays:
        items, waits = _table(Items, arrays, "items"), _table(Waits, arrays, "waits")
    head = facts["plan"]
    plan = Plan(
        graph,
        Dispatch(head["dispatch"]),
        _count(head["workers"]),
        _count(head["semaphores"]),
        items,
        waits,
        _text(head["policy"]),
        _text(head["order"]),
        Stealing(None if head["most"] is None else _count(head["most"]), Victim(head["victim"])),
    )
    if type(facts["rests_on"]) is not list:
        raise ValueError(f"{facts['rests_on']!r} is no list of orderings")
    rests_on = tuple((Ordering(ordering), _edge_of(edge)) for ordering, edge in facts["rests_on"])
    edges, by_wait = _count(facts["edges"]), _count(facts["by_wait"])
    if by_wait > edges:
        raise ValueError(f"{by_wait} of {edges} dependencies")
    return plan, Found(Coverage(edges, by_wait, rests_on), _text(facts["of"]))


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _count(value: Any) -> int:
    count = _integer(value)
    if count < 0:
        raise ValueError(f"{value!r} is no count")
    return count


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return str(value)


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
    region = Region(_text(tensor), tuple(map(_integer, lo)), tuple(map(_integer, hi)))
    texts = {name: _text(data[name]) for name in ("op", "producer", "consumer", "arg")}
    k = None if data["k"] is None else _count(data["k"])
    return Edge(hazard=Hazard[data["hazard"]], region=region, k=k, **texts)
