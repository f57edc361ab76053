"""The machine at hand, and what else a record of a run should say about it."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from interlace import __version__
from interlace.cli.names import Device
from interlace.core.devices import CPU, H200
from interlace.core.errors import NoDeviceError
from interlace.executors.gpu import open_device

#: Of NumPy, where runs on a CPU are timed: how many there are by default depends on the machine and what else it does.
BLAS_THREADS = 1


@dataclass(frozen=True)
class Machine:
    """Where plans run.

    Attributes:
        cuda: a GPU rather than the CPU.
        name: as the driver reports it.
        sms: streaming multiprocessors; on a CPU, how many workers a plan has by default.
        l2_bytes: size of the last-level cache.
        torch, device: of a GPU that is really here, else None. The command line itself never imports torch.
    """

    cuda: bool
    name: str
    sms: int
    l2_bytes: int
    torch: Any = None
    device: Any = None

    @property
    def device_name(self) -> str:
        """The torch device that executors take."""
        return str(self.device) if self.cuda else "cpu"

    @property
    def facts(self) -> dict[str, object]:
        """The machine as JSON."""
        kind: dict[str, object] = {"kind": "cuda"} if self.cuda else {"kind": "cpu", "blas_threads": BLAS_THREADS}
        return {"name": self.name, **kind, "sms": self.sms}

    @property
    def timed(self) -> str:
        """The machine, as it stands above times."""
        return self.name if self.cuda else f"{self.name}, one BLAS thread"


def find(device: Device | None) -> Machine:
    """The machine to run on.

    Raises:
        NoDeviceError: a GPU was asked for and there is none.
    """
    if device is Device.CPU or (device is not Device.CUDA and not _has_driver()):
        return _cpu()
    try:
        torch, handle = open_device("cuda")
    except NoDeviceError:
        if device is Device.CUDA:
            raise
        return _cpu()
    properties = torch.cuda.get_device_properties(handle)
    return Machine(
        True, properties.name, properties.multi_processor_count, properties.L2_cache_size, torch, handle
    )


def target(device: Device | None) -> Machine:
    """The machine to plan for: a GPU that is asked for need not be here."""
    absent = Machine(True, H200.name, H200.sms, H200.l2_bytes)
    if device is Device.CUDA and not _has_driver():
        return absent
    try:
        return find(device)
    except NoDeviceError:
        return absent


def versions() -> dict[str, str]:
    """Versions of what shapes a result; packages that are absent are left out."""
    found = {"interlace": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> Machine:
    return Machine(False, f"CPU ({platform.machine()})", CPU.sms, CPU.l2_bytes)


def _has_driver() -> bool:
    """Whether there is an NVIDIA driver: cheap to tell, while importing torch takes seconds."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
