"""Records: measured figures with everything needed to judge and repeat them."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from interlace.bench.sources import hash_sources
from interlace.core.files import write_atomic
from interlace.executors.gpu import open_device


def format_record(command: str, protocol: str, measures: Iterable[str], figures: dict[str, Any]) -> str:
    """Return figures with GPU, versions, date, command and source hashes, as the text of one JSON file.

    Args:
        measures: rooms and modules of the package that the figures depend on (``sources``).

    Raises:
        NoDeviceError: there is no CUDA device to name.
    """
    return _format_text(_describe_origin(measures), command, protocol, figures)


def write_record(path: Path, command: str, protocol: str, measures: Iterable[str], figures: dict[str, Any]) -> None:
    """Write a ``format_record`` atomically.

    Raises:
        NoDeviceError: there is no CUDA device to name.
        OSError: the file cannot be written.
    """
    write_atomic(path, format_record(command, protocol, measures, figures))


def write_cpu_record(
    path: Path,
    command: str,
    protocol: str,
    measures: Iterable[str],
    figures: dict[str, Any],
    packages: tuple[str, ...],
) -> None:
    """Write a record of CPU figures: with the CPU's name, and the versions of Python and of ``packages``."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    origin = {"cpu": read_cpu_name(), "versions": versions, "sources": hash_sources(measures)}
    write_atomic(path, _format_text(origin, command, protocol, figures))


def read_cpu_name() -> str:
    """Return the CPU's name from the kernel, or its architecture if the kernel does not name it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _format_text(origin: dict[str, Any], command: str, protocol: str, figures: dict[str, Any]) -> str:
    head = {
        **origin,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "protocol": protocol,
    }
    return json.dumps({**head, **figures}, indent=1) + "\n"


def read_matching_rows(path: Path, measures: Iterable[str], **same: Any) -> list[dict[str, Any]]:
    """Return the rows of a record with the same origin; an empty list if there is no such record.

    The origin is the GPU, the versions and the source hashes.

    Args:
        path: path of the record.
        measures: rooms and modules whose source hashes must match.
        same: further figures of the record that must match.

    Raises:
        NoDeviceError: there is no CUDA device to compare with.
    """
    origin = {**_describe_origin(measures), **same}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = found["rows"] if {key: found[key] for key in origin} == origin else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(rows)


def _describe_origin(measures: Iterable[str]) -> dict[str, Any]:
    """Return the origin of figures; figures can be compared only if their origins are equal."""
    torch, device = open_device("cuda")
    return {
        "gpu": torch.cuda.get_device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": version("triton"),
            "cuda": torch.version.cuda,
        },
        "sources": hash_sources(measures),
    }
