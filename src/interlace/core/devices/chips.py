"""Known chips, one data file each next to this module, and specs derived for other GPUs.

If a chip's file names another chip as ``like``, missing values are those of that chip, scaled. Worked example, a GPU
with 108 SMs at 1.41 GHz, 40 MiB of L2 and a bus of 2.0 TB/s, from an H200 (132 SMs at 1.98 GHz, 60 MiB, 4.8 TB/s):

    bf16            790 TFLOP/s * 108 / 132 * 1.41 / 1.98 = 460 TFLOP/s
    memory          4.53 TB/s * 2.0 / 4.8 = 1.89 TB/s
    a side of L2    31 MiB * 40 / 60 = 20.7 MiB
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from interlace.core.devices.spec import L2, DeviceSpec, Latencies, StageCosts
from interlace.core.errors import DeviceDataError

_FOLDER = Path(__file__).parent
#: Attributes that identify a spec and carry no measured value.
_IDENTITY = ("name", "like", "derived")


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties of a GPU that a driver reports; attributes as in ``DeviceSpec``, rates 0 if they are not reported."""

    name: str
    capability: tuple[int, int]
    sms: int
    smem_bytes: int
    l2_bytes: int
    clock_hz: float = 0.0
    bus_bytes_per_s: float = 0.0


def load_chip(key: str, folder: Path = _FOLDER) -> DeviceSpec:
    """Load the spec of a chip from its data file, such as ``h200``.

    Raises:
        DeviceDataError: the file does not exist, lacks a value, or has an unknown one.
    """
    path = folder / f"{key}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DeviceDataError(f"no data of a chip {key!r}; use one of {', '.join(_list_keys(folder))}") from None
    except tomllib.TOMLDecodeError as error:
        raise DeviceDataError(f"{path.name} is no TOML: {error}") from None
    try:
        given = _parse_fields(data)
        if "like" not in data:
            return DeviceSpec(**given)
        own = Properties(**{field.name: given[field.name] for field in fields(Properties)})
        guess = scale_spec(load_chip(data["like"], folder), own)
        derived = tuple(name for name in guess.derived if name not in given)
        return replace(guess, **given, derived=derived)
    except (TypeError, KeyError, AttributeError) as error:
        raise DeviceDataError(f"{path.name} does not describe a chip: {error}; compare the other files") from None


def load_chips(folder: Path = _FOLDER) -> Mapping[str, DeviceSpec]:
    """Load all GPUs with a data file, by the file's name."""
    found = {key: load_chip(key, folder) for key in _list_keys(folder)}
    return {key: spec for key, spec in found.items() if spec.architecture}


@cache
def load_known_chips() -> Mapping[str, DeviceSpec]:
    """Return the GPUs whose data files are part of the package."""
    return load_chips()


def scale_spec(like: DeviceSpec, reported: Properties) -> DeviceSpec:
    """Derive the spec of a GPU from a known one; all attributes that a driver does not report are marked as derived.

    Matrix rates scale with the number and clock of the SMs, the rates of one SM with its clock, memory bandwidth with
    the bus, and the sides of the cache with its size. Latencies, stage costs and the memory bandwidth of a lone SM,
    which latency also limits, are not scaled.
    """
    clock = reported.clock_hz / like.clock_hz if reported.clock_hz else 1.0
    bus = reported.bus_bytes_per_s / like.bus_bytes_per_s if reported.bus_bytes_per_s else 1.0
    told = {field.name: getattr(reported, field.name) for field in fields(Properties) if getattr(reported, field.name)}
    major, minor = reported.capability
    guess = replace(
        like,
        **told,
        architecture=f"sm_{major}{minor}{'a' if major >= 9 else ''}",
        dram_bytes_per_s=like.dram_bytes_per_s * bus,
        rates=tuple((name, rate * reported.sms / like.sms * clock) for name, rate in like.rates),
        sm_l2_bytes_per_s=like.sm_l2_bytes_per_s * clock,
        sm_sum_bytes_per_s=like.sm_sum_bytes_per_s * clock,
        l2=replace(like.l2, side_bytes=like.l2.side_bytes * reported.l2_bytes // like.l2_bytes),
        like=like.name,
    )
    free = (field.name for field in fields(DeviceSpec) if field.name not in (*told, *_IDENTITY, "architecture"))
    return replace(guess, derived=tuple(free))


def resolve_spec(reported: Properties) -> DeviceSpec:
    """Return the spec of a GPU that the driver describes as ``reported``.

    A known chip has its own spec. Any other GPU is unmeasured and gets the spec of the nearest known one,
    ``scale_spec``. The nearest has the closest compute capability and, among equals, the closest memory bandwidth per
    SM (or L2 size, if the driver does not report the bandwidth).
    """
    known = load_known_chips().values()
    same = next((spec for spec in known if (spec.name, spec.sms) == (reported.name, reported.sms)), None)
    return same or scale_spec(min(known, key=lambda spec: _compute_distance(spec, reported)), reported)


def _compute_distance(spec: DeviceSpec, own: Properties) -> tuple[float, float]:
    generation = abs(10 * (spec.capability[0] - own.capability[0]) + spec.capability[1] - own.capability[1])
    if own.bus_bytes_per_s:
        return generation, abs(log(own.bus_bytes_per_s / own.sms * spec.sms / spec.bus_bytes_per_s))
    return generation, abs(log(own.l2_bytes / spec.l2_bytes))


def _parse_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file as attributes of a spec."""
    given = {name: value for name, value in data.items() if name != "like"}
    given["capability"] = tuple(data["capability"])
    for name, kind in (("l2", L2), ("latencies", Latencies), ("stages", StageCosts)):
        if name in data:
            given[name] = kind(**data[name])
    if "rates" in data:
        given["rates"] = tuple(data["rates"].items())
    return given


def _list_keys(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))
