"""Devices as data: a file for each known chip, and ``DeviceSpec``, the data that the package needs of a device."""

from __future__ import annotations

from interlace.core.devices.chips import (
    Properties,
    load_chip,
    load_chips,
    load_known_chips,
    read_chip,
    resolve_spec,
    scale_spec,
)
from interlace.core.devices.spec import L2, DeviceSpec, Latencies, StageCosts

__all__ = [
    "CPU",
    "DEFAULT_GPU",
    "H100",
    "H200",
    "L2",
    "DeviceSpec",
    "Latencies",
    "Properties",
    "StageCosts",
    "load_chip",
    "load_chips",
    "load_known_chips",
    "read_chip",
    "resolve_spec",
    "scale_spec",
]

H200 = load_known_chips()["h200"]
H100 = load_known_chips()["h100"]
#: Device used if there is no GPU.
CPU = load_chip("cpu")
#: GPU that plans and kernels target if none is named and none is present.
DEFAULT_GPU = H200
