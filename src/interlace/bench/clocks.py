"""SM clock and power while something runs on a GPU, as the driver's management library (NVML) reads them.

Where arithmetic is the limit, power decides: the same launch has two times, by the clock that the power leaves. So such
times are kept with both. A thread reads them again and again beside the rounds; a clock counts for whoever ran when it
was read. Power is a mean over the last second (NVML API, ``nvmlDeviceGetPowerUsage``), longer than any turn of one
variant, so it is one figure for all of them.
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
    """Medians of what was read.

    Attributes:
        sm_mhz: of the SMs, by who ran.
        watts: of the GPU, over all that ran.
    """

    sm_mhz: Mapping[str, float]
    watts: float


class Meter(Protocol):
    """What tells clock and power; raises OSError where it does not."""

    def read(self) -> tuple[int, float]:
        """The clock of the SMs in MHz, and watts."""


@dataclass
class Watch:
    """What a thread has read so far.

    Attributes:
        running: who runs now; what is read while it is None does not count.
    """

    running: str | None = None
    _mhz: dict[str, list[int]] = field(default_factory=dict)
    _watts: list[float] = field(default_factory=list)

    def clocks(self) -> Clocks | None:
        """None if nothing was read."""
        if not self._watts:
            return None
        return Clocks({name: float(median(values)) for name, values in self._mhz.items()}, median(self._watts))

    def note(self, name: str | None, mhz: int, watts: float) -> None:
        """A reading, and who ran when it was begun."""
        if name is not None:
            self._mhz.setdefault(name, []).append(mhz)
            self._watts.append(watts)


@contextmanager
def watching(meter: Meter | None) -> Iterator[Watch]:
    """Read in a thread while the block runs; without a meter nothing is, nor once it fails."""
    watch, over = Watch(), Event()
    if meter is None:
        yield watch
        return

    def read() -> None:
        with suppress(OSError):
            while not over.wait(_PERIOD_S):
                name = watch.running
                watch.note(name, *meter.read())

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


class Nvml:
    """A GPU in NVML.

    Args:
        uuid: as CUDA has it.

    Raises:
        OSError: there is no such library, or it does not know the GPU, its clock or its power.
    """

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._gpu = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._gpu))
        self.read()

    def read(self) -> tuple[int, float]:
        """The clock of the SMs in MHz, and watts."""
        mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self._gpu, _SM_CLOCK, ctypes.byref(mhz))
        self._call("nvmlDeviceGetPowerUsage", self._gpu, ctypes.byref(milliwatts))
        return mhz.value, milliwatts.value / 1e3

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise OSError(f"{function} failed with error {status}")


def meter_of(torch: Any, device: Any) -> Meter | None:
    """Of a CUDA device of PyTorch; None where the driver does not tell."""
    try:
        return Nvml(str(torch.cuda.get_device_properties(device).uuid))
    except (OSError, AttributeError):
        return None
