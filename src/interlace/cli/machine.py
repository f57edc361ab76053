"""The machine at hand, and what else a record of a run should say about it."""

from __future__ import annotations

import ctypes
import platform
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from interlace import __version__
from interlace.cli.console import note
from interlace.cli.names import Device
from interlace.core.devices import CPU, DEFAULT_GPU, DeviceSpec
from interlace.core.errors import NoDeviceError
from interlace.executors.gpu import EstimatedDeviceWarning, detect_spec, open_device

#: Of NumPy, where runs on a CPU are timed: how many there are by default depends on the machine and what else it does.
BLAS_THREADS = 1


@dataclass(frozen=True)
class HostMachine:
    """Where plans run.

    Attributes:
        cuda: a GPU rather than the CPU.
        spec: the device as data; on a CPU, its SMs are how many workers a plan has by default.
        torch, device: of a GPU that is really here, else None. The command line itself never imports torch.
    """

    cuda: bool
    spec: DeviceSpec
    torch: Any = None
    device: Any = None

    @property
    def name(self) -> str:
        """As the driver reports it."""
        return self.spec.name

    @property
    def device_name(self) -> str:
        """The torch device that executors take."""
        return str(self.device) if self.cuda else "cpu"

    @property
    def facts(self) -> dict[str, object]:
        """The machine as JSON."""
        kind: dict[str, object] = {"kind": "cuda"} if self.cuda else {"kind": "cpu", "blas_threads": BLAS_THREADS}
        return {"name": self.name, **kind, "sms": self.spec.sms}

    @property
    def timing_title(self) -> str:
        """The machine, as it stands above times."""
        return self.name if self.cuda else f"{self.name}, one BLAS thread"


def find_machine(device: Device | None) -> HostMachine:
    """The machine to run on; a note tells of a GPU whose ceilings nobody measured, once.

    Raises:
        NoDeviceError: a GPU was asked for and there is none.
    """
    if device is Device.CPU or (device is not Device.CUDA and not _has_driver()):
        return _make_cpu()
    try:
        torch, handle = open_device("cuda")
    except NoDeviceError:
        if device is Device.CUDA:
            raise
        return _make_cpu()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", EstimatedDeviceWarning)
        spec = detect_spec(torch, handle)
    for warning in told:
        note(str(warning.message))
    return HostMachine(True, spec, torch, handle)


def find_target(device: Device | None) -> HostMachine:
    """The machine to plan for: a GPU that is asked for need not be here."""
    absent = HostMachine(True, DEFAULT_GPU)
    if device is Device.CUDA and not _has_driver():
        return absent
    try:
        return find_machine(device)
    except NoDeviceError:
        return absent


def list_versions() -> dict[str, str]:
    """Versions of what shapes a result; packages that are absent are left out."""
    found = {"interlace": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _make_cpu() -> HostMachine:
    return HostMachine(False, replace(CPU, name=f"CPU ({platform.machine()})"))


def _has_driver() -> bool:
    """Whether there is an NVIDIA driver: cheap to tell, while importing torch takes seconds."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
