"""Parser of plans from JSON text of any origin: it checks types and form; ``verify`` checks what the plan means.

``interlace.read_plan`` is the entry point: it calls ``parse_plan`` with the kernels that check ops against their
access maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from interlace.core.arguments import format_value
from interlace.core.errors import GraphError, InterlaceError, PlanFormatError
from interlace.graph.access import Ints
from interlace.graph.graph import from_data
from interlace.graph.op import Body
from interlace.plan.plan import FORMAT, SCHEMA_VERSION, Dispatch, Items, Plan, Waits
from interlace.plan.stealing import STEAL_ONE, Stealing, Victim


def parse_plan(text: str, kernels: Mapping[str, Body]) -> Plan:
    """Parse the text that ``Plan.to_json`` wrote into a plan, not yet verified.

    Args:
        text: JSON text.
        kernels: kernels by name. Each op must equal the one that its kernel makes for its tensors and params; an op
            without a kernel can be verified but not run, and is ``unproved``.

    Raises:
        PlanFormatError: the text is not JSON, not a plan, of another schema version, or has an op that its kernel does
            not make.
    """
    if not isinstance(text, str):
        raise PlanFormatError(
            f"the text of a plan is {format_value(text)}; give the JSON that Plan.to_json wrote, as a str"
        )
    try:
        data = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"not JSON: {error}; write plans with Plan.to_json or `interlace plan`") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanFormatError(
            f'not a plan: the text lacks "format": "{FORMAT}"; write plans with Plan.to_json or `interlace plan`'
        )
    version = data.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise PlanFormatError(
            f"plan has schema version {version!r}, this is version {SCHEMA_VERSION}; "
            "make the plan again with this release"
        )
    try:
        return Plan(
            from_data(data["graph"], kernels),
            Dispatch(data["dispatch"]),
            _parse_count(data["workers"]),
            _parse_count(data["semaphores"]),
            Items(**{f.name: _parse_column(data["items"][f.name]) for f in fields(Items)}),
            Waits(**{f.name: _parse_column(data["waits"][f.name]) for f in fields(Waits)}),
            data["policy"],
            data["order"],
            _parse_stealing(data["stealing"]) if "stealing" in data else STEAL_ONE,
        )
    except GraphError as error:
        raise PlanFormatError(f"the plan's graph is inconsistent: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, InterlaceError) as error:
        raise PlanFormatError(f"damaged plan: {type(error).__name__}: {error}; make it again") from None


def _parse_stealing(data: Any) -> Stealing:
    return Stealing(data["most"], Victim(data["victim"]))


def _parse_column(values: Any) -> Ints:
    if not isinstance(values, list) or any(type(v) is not int for v in values):
        raise ValueError("a column is not a list of integers")
    return np.array(values, np.int64)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise ValueError(f"{name!r} stands twice in one object")
        data[name] = value
    return data


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _parse_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
