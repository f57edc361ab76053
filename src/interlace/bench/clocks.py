"""SM clock and power of a GPU while variants run, read through the driver's management library (NVML).

For compute-bound launches, power decides the time: the power limit sets the clock, and the clock sets the time. So the
times of such launches are recorded with clock and power. A thread reads both repeatedly during the rounds, and assigns
each clock reading to the variant that was running. Power is a mean over the last second (NVML API,
``nvmlDeviceGetPowerUsage``), longer than any replay of one variant, so there is one figure for all variants.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from threading import Event, Thread
from typing import Any, Protocol

_PERIOD_S = 1e-3
_SM_CLOCK = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class Clocks:
    """Medians of the readings.

    Attributes:
        sm_mhz: SM clock in MHz, by variant.
        watts: power of the GPU in watts, over all variants.
    """

    sm_mhz: Mapping[str, float]
    watts: float


class Meter(Protocol):
    """Source of clock and power readings; raises OSError if there is no reading."""

    def read(self) -> tuple[int, float]:
        """Read the SM clock in MHz and the power in watts."""


@dataclass
class Watch:
    """Readings of a thread so far.

    Attributes:
        running: variant that is running; readings while it is None are ignored.
    """

    running: str | None = None
    _mhz: dict[str, list[int]] = field(default_factory=dict)
    _watts: list[float] = field(default_factory=list)

    def compute_medians(self) -> Clocks | None:
        """Return the medians of the readings, or None if there are none."""
        if not self._watts:
            return None
        return Clocks({name: float(median(values)) for name, values in self._mhz.items()}, median(self._watts))

    def record(self, name: str | None, mhz: int, watts: float) -> None:
        """Record a reading and the variant that was running when the reading began."""
        if name is not None:
            self._mhz.setdefault(name, []).append(mhz)
            self._watts.append(watts)


@contextmanager
def watch_clocks(meter: Meter | None) -> Iterator[Watch]:
    """Read clock and power in a thread while the block runs; read nothing without a meter or after it fails."""
    watch, over = Watch(), Event()
    if meter is None:
        yield watch
        return

    def read() -> None:
        with suppress(OSError):
            while not over.wait(_PERIOD_S):
                name = watch.running
                watch.record(name, *meter.read())

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


class Nvml:
    """Meter of one GPU through NVML.

    Args:
        uuid: UUID of the GPU as reported by CUDA.

    Raises:
        OSError: NVML is not installed, or does not report the GPU, its clock or its power.
    """

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._gpu = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._gpu))
        self.read()

    def read(self) -> tuple[int, float]:
        """Read the SM clock in MHz and the power in watts."""
        mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self._gpu, _SM_CLOCK, ctypes.byref(mhz))
        self._call("nvmlDeviceGetPowerUsage", self._gpu, ctypes.byref(milliwatts))
        return mhz.value, milliwatts.value / 1e3

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise OSError(f"{function} failed with error {status}")


def open_meter(torch: Any, device: Any) -> Meter | None:
    """Return the meter of a PyTorch CUDA device, or None if the driver does not report clock and power."""
    try:
        return Nvml(str(torch.cuda.get_device_properties(device).uuid))
    except (OSError, AttributeError):
        return None
