"""Cache of the schedules that measured searches found: one file per problem, GPU and versions in the user's cache.

    <cache folder>/tune/<hash of the key>.json    {"schema_version": 2, "key": {...}, "setting": {...}, "us": 54.2, ...}

An entry has the tilings of the schedule (``policies/tiling``); the rest follows from executor and device. The key has
everything that they may depend on: the ops of a graph with their tensors, but not their tiling. A file
is written completely, then renamed. So concurrent writers cannot damage each other's entries, and readers never see a
partial entry. Unreadable entries count as absent.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.core.store import CacheFolder
from interlace.core.version import VERSION
from interlace.executors import Executor
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import decode_tilings, encode_tilings

_SCHEMA = 2
_MIN_US, _MAX_US = 1e-3, 1e12  # range of a launch: a nanosecond to eleven days
_FOLDER = CacheFolder("tune", re.compile(r"[0-9a-f]{32}\.json"))


@dataclass(frozen=True)
class CacheEntry:
    """Cached result of a search.

    Attributes:
        schedule: fastest schedule.
        us: time of one run with this schedule in microseconds.
        library_us: time of PyTorch's fastest configuration on the same problem in microseconds, timed next to it; None
            if none was timed. It is scaled such that the ratio of both times is the smaller of the ratios measured
            back to back and in a layer.
    """

    schedule: Schedule
    us: float
    library_us: float | None = None


def create_cache_folder() -> None:
    """Create the folder of cached schedules if it does not exist.

    Raises:
        OSError: the folder cannot be written.
    """
    _FOLDER.create()


def store_cached(graph: Graph, device: DeviceSpec, executor: type[Executor], kept: CacheEntry) -> Path:
    """Cache the result of a search for a graph (in any tiling), an executor and a device. Returns the path of the file.

    Raises:
        OSError: the cache cannot be written.
    """
    key = _make_key(graph, device, executor)
    times = {"us": kept.us, "library_us": kept.library_us}
    entry = {"schema_version": _SCHEMA, "key": key, "setting": encode_tilings(kept.schedule.op_tilings), **times}
    return _FOLDER.write(_make_name(key), (json.dumps(entry, indent=1) + "\n").encode())


def load_cached(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> CacheEntry | None:
    """Return the entry of exactly this problem, executor, device and versions, if there is one.

    A damaged file counts as absent and causes a RuntimeWarning.
    """
    key = _make_key(graph, device, executor)
    where = "the cache of tuned settings"
    try:
        name = _make_name(key)
        where = str(_FOLDER.entry_path(name))
        content = _FOLDER.read(name)
        if content is None:
            return None
        entry = json.loads(content.decode())
        if entry["schema_version"] != _SCHEMA or entry["key"] != key:
            raise ValueError("it is of another schema, or for something else")
        us, library_us = _check_us(entry["us"]), _check_us(entry["library_us"], or_none=True)
        return CacheEntry(executor.make_schedule(graph, device, decode_tilings(entry["setting"])), us, library_us)
    except FileNotFoundError:  # no home folder
        return None
    except Exception as error:  # noqa: BLE001  # a file may hold anything
        message = f"{where} is ignored: {type(error).__name__}: {error}; `interlace tune` writes it anew"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return None


def _check_us(value: Any, or_none: bool = False) -> Any:
    if not (or_none and value is None) and not (type(value) in (int, float) and _MIN_US <= value <= _MAX_US):
        raise ValueError(f"a time of {value!r:.40}")
    return value


def describe_problem(graph: Graph) -> list[dict[str, Any]]:
    """Return the ops of a graph with their tensors as JSON data that does not depend on their tiling."""
    return [_describe_op(graph, op) for op in graph.ops]


def _describe_op(graph: Graph, op: Op) -> dict[str, Any]:
    kernel = get_kernel(op)
    tensors = {access.arg: graph.tensor(access.tensor) for access in op.accesses}
    told = {
        "op": op.name,
        "kernel": op.kernel,
        "params": {name: value for name, value in op.params if name not in kernel.tiling},
        "tensors": {arg: [t.name, list(t.shape), t.dtype.name] for arg, t in tensors.items()},
    }
    return told if kernel.tiling else {**told, "grid": list(op.grid)}


def _make_name(key: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return f"{digest[:32]}.json"


def _make_key(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> dict[str, Any]:
    """Return everything that a schedule may depend on."""
    return {
        "executor": executor.name,
        "gpu": device.name,
        "versions": dict(_list_versions()),
        "problem": describe_problem(graph),
    }


@cache
def _list_versions() -> tuple[tuple[str, str], ...]:
    found = [("interlace", VERSION)]
    for package in ("torch", "triton"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)
