"""Devices as data: a file for each known chip, and ``DeviceSpec``, the data that the package needs of a device."""

from __future__ import annotations

from interlace.core.devices.chips import Properties, chip, chips, known_chips, scaled, spec_for
from interlace.core.devices.spec import L2, DeviceSpec, Latencies, Stages

__all__ = [
    "CPU",
    "DEFAULT_GPU",
    "H100",
    "H200",
    "L2",
    "DeviceSpec",
    "Latencies",
    "Properties",
    "Stages",
    "chip",
    "chips",
    "known_chips",
    "scaled",
    "spec_for",
]

H200 = known_chips()["h200"]
H100 = known_chips()["h100"]
#: Device used if there is no GPU.
CPU = chip("cpu")
#: GPU that plans and kernels target if none is named and none is present.
DEFAULT_GPU = H200
