"""Plans with their proofs, kept in the user's cache between processes, beside what was compiled (``cuda/cache``).

A plan follows from a graph and choices, and its proof from the plan. So the key of a kept one is all of these, and what
plans and proves:

    graph      as data: tensors, ops, grids, access maps, params; not the bodies, at which neither looks
    choices    workers, dispatch, policies, orders, splits, interleaving; how a device or an executor matters
    versions   of Python, NumPy and this package, and a hash of its sources

Of a plan that is there (``prove_plan``) the key has its digest for graph and choices. Choices that are not the
package's own, such as a policy of yours, are code that no key tells, so what they plan is not kept. Nor is what a
package plans whose files changed after it was imported, nor a plan of few ops, which takes no time.

Why what is read is as good as proved here. The process that wrote it proved it, by the same code on the same graph, and
proving again would give the same. A file begins with a hash of its key and of all that follows, so one that is damaged,
cut off or renamed counts as absent. Of what is read everything is proved again but one step (``verify.recalled``): what
depends on what, and that waits enforce it, takes long, and is believed of the plan whose digest is written beside it,
and of no other. That guards against every accident. Other users cannot write to this user's cache (``core/store``), and
a program that runs as this user could as well exchange the kernels that were compiled there, or the package.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from interlace.core.version import VERSION
from interlace.graph.graph import Graph, to_data
from interlace.kernels.cuda import cache as disk
from interlace.plan.coverage import Coverage
from interlace.plan.plan import Plan
from interlace.plan.record import hash_plan, read_record, write_record
from interlace.plan.verify import Proof, load_proof, verify
from interlace.planner.build import Choices, build

#: Ops of a graph from which on a plan is kept; those of fewer are planned and proved in a fraction of a second.
MIN_CACHED_OPS = 32
_SCHEMA = 1  # of the records: another number where others are kept
_SOURCES = ".cuh", ".py"
_PACKAGE = __name__.partition(".")[0]
_STARTED_AT = time.time()  # what runs was imported then or, by files that have not changed since, later


def prove_choices(graph: Graph, choices: Choices) -> Proof:
    """The plan that follows from a graph and choices, proved: kept from before, or made here and kept.

    Raises:
        InterlaceError: as ``build`` and ``verify``.
    """
    return _load_or_prove(graph, lambda: _describe_inputs(graph, choices), lambda: build(graph, choices))


def prove_plan(plan: Plan) -> Proof:
    """Of a plan that is there, such as one that follows from another: kept from before, or made here and kept.

    Raises:
        InterlaceError: as ``verify``.
    """
    return _load_or_prove(plan.graph, lambda: {"digest": hash_plan(plan)}, lambda: plan)


def _load_or_prove(graph: Graph, what: Callable[[], Mapping[str, Any]], plan: Callable[[], Plan]) -> Proof:
    """Of a plan, by what it depends on, as JSON data."""
    key = _compute_key(what) if len(graph.ops) >= MIN_CACHED_OPS else None
    proof = None if key is None else _load_cached(key, graph)
    if proof is None:
        proof = verify(plan())
        if key is not None:
            disk.store(key, *write_record(proof.plan, Coverage(proof.edges, proof.edges_by_wait, proof.rests_on)))
    return proof


def _describe_inputs(graph: Graph, choices: Choices) -> dict[str, Any]:
    """Raises TypeError if a choice is not the package's own."""
    return {"graph": to_data(graph), "choices": _encode_choice(choices)}


def _load_cached(key: str, graph: Graph) -> Proof | None:
    kept = disk.lookup(key)
    if kept is None:
        return None
    try:
        return load_proof(*read_record(*kept, graph))
    except Exception:  # noqa: BLE001  # a file may hold anything: what is not written here is made and written anew
        return None


def _compute_key(what: Callable[[], Mapping[str, Any]]) -> str | None:
    """The hash of what a proved plan depends on; None if that cannot be told."""
    made_by = hash_folder(Path(__file__).parents[1])
    if made_by is None:
        return None
    versions = [sys.version, np.__version__, VERSION, made_by]
    try:
        return disk.compute_key(plan=_SCHEMA, versions=versions, **what())
    except TypeError:
        return None


@cache
def hash_folder(folder: Path) -> str | None:
    """Hash all sources below a folder: Python and CUDA C++.

    Returns None if there are none, or if one changed after this was imported.
    """
    found = hashlib.sha256()
    files = sorted(file for suffix in _SOURCES for file in folder.rglob(f"*{suffix}"))
    try:
        for file in files:
            times = file.stat()
            if (
                max(times.st_mtime, times.st_ctime) >= _STARTED_AT
            ):  # one that is put in its place may keep its own mtime
                return None
            text = file.read_bytes()
            found.update(f"{file.relative_to(folder).as_posix()} {len(text)} ".encode() + text)
    except OSError:
        return None
    return found.hexdigest() if files else None


def _encode_choice(value: Any) -> Any:
    """A choice as JSON data, equal only for equal ones. Raises TypeError if it is not the package's own."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value)
    if kind is np.ndarray or (isinstance(value, np.generic) and kind.__module__ == "numpy"):
        return [str(value.dtype), value.tolist()]  # which is no JSON where it is of objects
    if kind is dict:  # of another mapping nobody knows whether its items are what one finds there
        return ["by name", *([_encode_choice(name), _encode_choice(each)] for name, each in value.items())]
    if kind in (tuple, list):
        return ["in order", *map(_encode_choice, value)]
    if not _is_own(kind):
        raise TypeError(f"{value!r} is of {kind.__module__}, of which no key tells what it does")
    if isinstance(value, Enum):
        return [kind.__qualname__, value.name]
    if not is_dataclass(value) or vars(value).keys() != {f.name for f in fields(value)}:
        raise TypeError(f"{value!r} has more to it than its fields")
    return [
        f"{kind.__module__}.{kind.__qualname__}",
        *([f.name, _encode_choice(getattr(value, f.name))] for f in fields(value)),
    ]


def _is_own(kind: type) -> bool:
    """Return whether a class is one of this package, rather than one that says so."""
    if kind.__module__.partition(".")[0] != _PACKAGE:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind
