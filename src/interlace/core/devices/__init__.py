"""Devices as data: a file for each known chip, ``DeviceSpec`` for what the package asks of one."""

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
#: Stands in where there is no GPU.
CPU = chip("cpu")
#: The GPU that plans and kernels are for where none is named and none is here.
DEFAULT_GPU = H200
