"""Cache of plans with their proofs in the user's cache folder, next to compiled kernels (``cuda/cache``).

A graph and a schedule determine a plan, and the plan determines its proof. So the key of an entry consists of these,
and of the versions of the code that plans and proves:

    graph      as data: tensors, ops, grids, access maps, params; not the bodies, which planner and proof do not read
    schedule   workers, dispatch, policies, orders, splits, interleaving; device and executor matter only through these
    versions   of Python, NumPy and this package, and a hash of its sources

For an existing plan (``prove_plan``) the key has the plan's digest in place of graph and schedule. Three kinds of plans
are not cached: those with values from outside the package, such as a policy of the user, which are code that no key
can identify; those of a package with files that changed after it was imported; and those of few ops, which take no
time to plan and prove.

Why a cached proof is as good as a new one. The process that wrote it proved it, with the same code on the same graph;
proving again would give the same result. A file begins with a hash of its key and of all that follows, so a damaged,
truncated or renamed file counts as absent. After reading, everything is proved again except one long step
(``verify.load_proof``): which items depend on which, and that waits enforce it. That step is trusted only for the plan
with the recorded digest. This guards against every accident. Other users cannot write to this user's cache
(``core/store``). A program that runs as this user could just as well replace the compiled kernels, or the package.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
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
from interlace.planner.build import build
from interlace.planner.retile import retile
from interlace.policies.schedule import Schedule

#: Minimum number of ops of a cached plan. Smaller graphs are planned and proved in a fraction of a second.
MIN_CACHED_OPS = 32
_SCHEMA = 1  # of the records; changes with their format
_SOURCES = ".cuh", ".py"
_PACKAGE = __name__.partition(".")[0]
_STARTED_AT = time.time()  # running code was imported now, or later from files unchanged since


def prove_schedule(graph: Graph, schedule: Schedule) -> Proof:
    """Return the proved plan of a graph and a schedule, from the cache or newly built and cached.

    Raises:
        InterlaceError: see ``build`` and ``verify``.
    """
    tiled, rest = retile(graph, schedule.tiles), replace(schedule, tiles={})
    return _load_or_prove(tiled, lambda: _describe_inputs(tiled, rest), lambda: build(tiled, rest))


def prove_plan(plan: Plan) -> Proof:
    """Return the proof of an existing plan, such as one derived from another: cached, or new and then cached.

    Raises:
        InterlaceError: see ``verify``.
    """
    return _load_or_prove(plan.graph, lambda: {"digest": hash_plan(plan)}, lambda: plan)


def _load_or_prove(graph: Graph, what: Callable[[], Mapping[str, Any]], plan: Callable[[], Plan]) -> Proof:
    """Load the proof of a plan by its inputs (JSON data that ``what`` returns), or build, prove and cache the plan."""
    key = _compute_key(what) if len(graph.ops) >= MIN_CACHED_OPS else None
    proof = None if key is None else _load_cached(key, graph)
    if proof is None:
        proof = verify(plan())
        if key is not None:
            disk.store(key, *write_record(proof.plan, Coverage(proof.edges, proof.edges_by_wait, proof.rests_on)))
    return proof


def _describe_inputs(graph: Graph, schedule: Schedule) -> dict[str, Any]:
    """Return graph and schedule as JSON data. Raises TypeError for a value from outside the package."""
    return {"graph": to_data(graph), "schedule": _encode_value(schedule)}


def _load_cached(key: str, graph: Graph) -> Proof | None:
    kept = disk.lookup(key)
    if kept is None:
        return None
    try:
        return load_proof(*read_record(*kept, graph))
    except Exception:  # noqa: BLE001  # a file may hold anything; the plan is then proved and written again
        return None


def _compute_key(what: Callable[[], Mapping[str, Any]]) -> str | None:
    """Return the hash of everything that a proved plan depends on, or None if that cannot be determined."""
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

    Returns None if there are no sources, or if one changed after this module was imported.
    """
    found = hashlib.sha256()
    files = sorted(file for suffix in _SOURCES for file in folder.rglob(f"*{suffix}"))
    try:
        for file in files:
            times = file.stat()
            if max(times.st_mtime, times.st_ctime) >= _STARTED_AT:  # ctime, as a replaced file may keep its mtime
                return None
            text = file.read_bytes()
            found.update(f"{file.relative_to(folder).as_posix()} {len(text)} ".encode() + text)
    except OSError:
        return None
    return found.hexdigest() if files else None


def _encode_value(value: Any) -> Any:
    """Encode a value of a schedule injectively as JSON data. Raises TypeError for one from outside the package."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value)
    if kind is np.ndarray or (isinstance(value, np.generic) and kind.__module__ == "numpy"):
        return [str(value.dtype), value.tolist()]  # not JSON for object arrays
    if kind is dict:  # items of other mappings may differ from what lookups return
        return ["by name", *([_encode_value(name), _encode_value(each)] for name, each in value.items())]
    if kind in (tuple, list):
        return ["in order", *map(_encode_value, value)]
    if not _is_own(kind):
        raise TypeError(f"{value!r} is of {kind.__module__}, of which no key tells what it does")
    if isinstance(value, Enum):
        return [kind.__qualname__, value.name]
    if not is_dataclass(value) or vars(value).keys() != {f.name for f in fields(value)}:
        raise TypeError(f"{value!r} has more to it than its fields")
    return [
        f"{kind.__module__}.{kind.__qualname__}",
        *([f.name, _encode_value(getattr(value, f.name))] for f in fields(value)),
    ]


def _is_own(kind: type) -> bool:
    """Return whether a class belongs to this package and does not only claim to."""
    if kind.__module__.partition(".")[0] != _PACKAGE:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind
