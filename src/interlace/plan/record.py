"""A proved plan as bytes, for processes that would otherwise plan and prove it again.

    facts      dispatch, workers, semaphores, texts; the result of ``check_coverage``, and the digest of its plan
    columns    columns of items and waits, as arrays in one NumPy archive without pickles

The graph is left out, because readers of a record have it. ``verify.load_proof`` turns the record into a proof.
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
class CachedCoverage:
    """Coverage of a plan as an earlier proof established it.

    Attributes:
        coverage: orderings that enforce the plan's dependencies.
        plan_hash: ``hash_plan`` of the plan.
    """

    coverage: Coverage
    plan_hash: str


def hash_plan(plan: Plan) -> str:
    """Hash everything that a proof is about: the graph without its bodies, the dispatch, the counts and the arrays."""
    head = [to_data(plan.graph), _serialize_head(plan), len(plan.items), len(plan.waits)]
    found = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for table in (plan.items, plan.waits):
        for f in fields(table):
            column = np.ascontiguousarray(getattr(table, f.name))
            found.update(f"{f.name} {column.dtype} {column.shape} ".encode())
            found.update(column.data)
    return found.hexdigest()


def write_record(plan: Plan, coverage: Coverage) -> tuple[dict[str, Any], bytes]:
    """Return the facts and columns of a plan that was proved."""
    facts = {
        "plan": _serialize_head(plan),
        "of": hash_plan(plan),
        "edges": coverage.edges,
        "by_wait": coverage.by_wait,
        "rests_on": [[ordering.value, _serialize_edge(edge)] for ordering, edge in coverage.rests_on],
    }
    archive = io.BytesIO()
    np.savez_compressed(archive, **_list_columns("items", plan.items), **_list_columns("waits", plan.waits))
    return facts, archive.getvalue()


def read_record(facts: Mapping[str, Any], columns: bytes, graph: Graph) -> tuple[Plan, CachedCoverage]:
    """Read the plan that ``write_record`` converted, on its graph, and the coverage that was found for it.

    Raises:
        Exception: not a record, or one of another form; NumPy's reader of archives may raise anything.
    """
    with np.load(io.BytesIO(columns), allow_pickle=False) as arrays:
        items, waits = _read_table(Items, arrays, "items"), _read_table(Waits, arrays, "waits")
    head = facts["plan"]
    plan = Plan(
        graph,
        Dispatch(head["dispatch"]),
        _parse_count(head["workers"]),
        _parse_count(head["semaphores"]),
        items,
        waits,
        _parse_text(head["policy"]),
        _parse_text(head["order"]),
        Stealing(None if head["most"] is None else _parse_count(head["most"]), Victim(head["victim"])),
    )
    if type(facts["rests_on"]) is not list:
        raise ValueError(f"{facts['rests_on']!r} is no list of orderings")
    rests_on = tuple((Ordering(ordering), _parse_edge(edge)) for ordering, edge in facts["rests_on"])
    edges, by_wait = _parse_count(facts["edges"]), _parse_count(facts["by_wait"])
    if by_wait > edges:
        raise ValueError(f"{by_wait} of {edges} dependencies")
    return plan, CachedCoverage(Coverage(edges, by_wait, rests_on), _parse_text(facts["of"]))


def _parse_int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _parse_count(value: Any) -> int:
    count = _parse_int(value)
    if count < 0:
        raise ValueError(f"{value!r} is no count")
    return count


def _parse_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return str(value)


def _serialize_head(plan: Plan) -> dict[str, Any]:
    return {
        "dispatch": plan.dispatch.value,
        "workers": plan.workers,
        "semaphores": plan.semaphores,
        "policy": plan.policy,
        "order": plan.order,
        "most": plan.stealing.most,
        "victim": plan.stealing.victim.value,
    }


def _list_columns(name: str, table: Items | Waits) -> dict[str, Any]:
    return {f"{name}.{f.name}": getattr(table, f.name) for f in fields(table)}


def _read_table(kind: type[T], arrays: Mapping[str, Any], name: str) -> T:
    return kind(*(arrays[f"{name}.{f.name}"] for f in fields(kind)))


def _serialize_edge(edge: Edge) -> dict[str, Any]:
    region = edge.region
    return {**vars(edge), "hazard": edge.hazard.name, "region": [region.tensor, region.lo, region.hi]}


def _parse_edge(data: Mapping[str, Any]) -> Edge:
    tensor, lo, hi = data["region"]
    region = Region(_parse_text(tensor), tuple(map(_parse_int, lo)), tuple(map(_parse_int, hi)))
    texts = {name: _parse_text(data[name]) for name in ("op", "producer", "consumer", "arg")}
    k = None if data["k"] is None else _parse_count(data["k"])
    return Edge(hazard=Hazard[data["hazard"]], region=region, k=k, **texts)
