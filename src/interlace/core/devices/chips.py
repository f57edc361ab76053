"""Known chips, one data file each next to this module, and specs derived for other GPUs.

If a chip's file names another chip as ``like``, missing values are those of that chip, scaled. Worked example, a GPU
with 108 SMs at 1.41 GHz, 40 MiB of L2 and a bus of 2.0 TB/s, from an H200 (132 SMs at 1.98 GHz, 60 MiB, 4.8 TB/s):

    bf16            790 TFLOP/s * 108 / 132 * 1.41 / 1.98 = 460 TFLOP/s
    memory          4.53 TB/s * 2.0 / 4.8 = 1.89 TB/s
    a side of L2    31 MiB * 40 / 60 = 20.7 MiB
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from math import isfinite, log
from pathlib import Path
from typing import Any

from interlace.core.devices.spec import L2, DeviceSpec, Latencies, StageCosts
from interlace.core.dtypes import bf16
from interlace.core.errors import DeviceDataError

_FOLDER = Path(__file__).parent
_EXAMPLE = "the files in interlace/core/devices"
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
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise DeviceDataError(f"no data of a chip {key!r}; use one of {', '.join(_list_keys(folder))}") from None
    return read_chip(text, path.name, folder)


def read_chip(text: str, source: str, folder: Path = _FOLDER) -> DeviceSpec:
    """Return the spec that the text of a data file describes.

    Args:
        text: content of the file, in TOML.
        source: name of the file, for errors.
        folder: folder of the file that the text names as ``like``.

    Raises:
        DeviceDataError: the text is no TOML, or it lacks a value or has an unknown or impossible one.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceDataError(f"{source} is no TOML: {error}") from None
    try:
        given = _parse_fields(data)
        if "like" not in data:
            return _check(DeviceSpec(**given), source)
        needed = [field.name for field in fields(Properties) if field.default is MISSING or field.name in given]
        own = Properties(**{name: given[name] for name in needed})
        guess = scale_spec(load_chip(data["like"], folder), own)
        derived = tuple(name for name in guess.derived if name not in given)
        return _check(replace(guess, **given, derived=derived), source)
    except (TypeError, KeyError, AttributeError, ValueError, ArithmeticError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DeviceDataError(f"{source} does not describe a chip: {missing}; compare {_EXAMPLE}") from None


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
        l2=like.l2.resize(like.l2.side_bytes * reported.l2_bytes // like.l2_bytes),
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


def _check(spec: DeviceSpec, source: str) -> DeviceSpec:
    """Return the spec. Raises DeviceDataError for a value of the wrong type, or that no device has."""
    for name, kind, value in (*_values(spec), *((f"rates.{name}", "float", rate) for name, rate in spec.rates)):
        numeric = type(value) is int or (kind == "float" and type(value) is float and isfinite(value))
        zero_is_valid = name == "speed_spread" or "." in name
        if kind == "str":
            good, use = isinstance(value, str), "text"
        else:
            good, use = numeric and (value > 0 or (value == 0 and zero_is_valid)), "a positive number"
        if not good:
            raise DeviceDataError(f"{source}: {name} is {value!r}; use {use}, as in {_EXAMPLE}")
    major_minor = [number for number in spec.capability if type(number) is int and number >= 0]
    if len(major_minor) != 2 or len(spec.capability) != 2 or not re.fullmatch(r"(sm_\d+[a-z]?)?", spec.architecture):
        where = f"capability {list(spec.capability)} and architecture {spec.architecture!r}"
        raise DeviceDataError(f"{source}: {where} are those of no device; use those that {_EXAMPLE} have")
    if bf16.name not in dict(spec.rates) or spec.speed_spread >= 1:
        raise DeviceDataError(f"{source}: rates need one for bf16, and speed_spread is below 1, as in {_EXAMPLE}")
    return spec


def _values(part: DeviceSpec | L2 | Latencies | StageCosts, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield name, type and value of each number and text of a spec, its parts included."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, L2 | Latencies | StageCosts):
            yield from _values(value, f"{field.name}.")
        elif field.type in ("int", "float", "str"):
            yield f"{prefix}{field.name}", field.type, value


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
