"""Machine that runs or is predicted for, and its description in records."""

from __future__ import annotations

import ctypes
import platform
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from interlace import __version__
from interlace.cli.console import BadInput, note
from interlace.cli.names import Device, DeviceChoice
from interlace.core.devices import CPU, DEFAULT_GPU, DeviceSpec
from interlace.core.errors import NoDeviceError
from interlace.executors.gpu import EstimatedDeviceWarning, detect_spec, open_device

#: Threads of NumPy's BLAS in timed runs on a CPU. The default depends on the machine and its load.
BLAS_THREADS = 1


@dataclass(frozen=True)
class HostMachine:
    """Machine that plans run on or are predicted for.

    Attributes:
        cuda: True for a GPU, False for the CPU.
        spec: the device as data; on a CPU, its SMs are the default number of workers of a plan.
        torch, device: module and device of a GPU that is present, else None. The command line never imports torch.
    """

    cuda: bool
    spec: DeviceSpec
    torch: Any = None
    device: Any = None

    @property
    def name(self) -> str:
        """Name as the driver reports it."""
        return self.spec.name

    @property
    def device_name(self) -> str:
        """Torch device for executors."""
        return str(self.device) if self.cuda else "cpu"

    @property
    def facts(self) -> dict[str, object]:
        """Machine as JSON data."""
        kind: dict[str, object] = {"kind": "cuda"} if self.cuda else {"kind": "cpu", "blas_threads": BLAS_THREADS}
        return {"name": self.name, **kind, "sms": self.spec.sms}

    @property
    def timing_title(self) -> str:
        """Description of the machine above a table of times."""
        return self.name if self.cuda else f"{self.name}, one BLAS thread"


def find_machine(device: DeviceChoice | None) -> HostMachine:
    """Return the machine to run on; print one note for a GPU with ceilings that were not measured.

    Raises:
        NoDeviceError: a GPU was requested and there is none.
        BadInput: the device is only supported for prediction.
    """
    if isinstance(device, DeviceSpec):
        raise BadInput(
            f"--device: {device.name} is a GPU to predict for, but this command runs on the machine that is here; "
            "use auto, cpu or cuda"
        )
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


def find_target(device: DeviceChoice | None) -> HostMachine:
    """Return the machine to plan and predict for; a requested GPU need not be present."""
    if isinstance(device, DeviceSpec):
        if device.estimate_note:
            note(device.estimate_note)
        return HostMachine(True, device)
    absent = HostMachine(True, DEFAULT_GPU)
    if device is Device.CUDA and not _has_driver():
        return absent
    try:
        return find_machine(device)
    except NoDeviceError:
        return absent


def target_gpu(device: DeviceChoice | None) -> HostMachine:
    """Return the GPU to predict for; by default the present GPU, or the default target of plans if there is none.

    Raises:
        BadInput: the device is a CPU.
    """
    if device is Device.CPU:
        raise BadInput("--device: predictions are for a GPU, not for the CPU; use cuda, a chip or a file")
    return find_target(Device.CUDA if device is None or isinstance(device, Device) else device)


def list_versions() -> dict[str, str]:
    """Return the versions of the packages that influence a result, without packages that are absent."""
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
    """Return True if there is an NVIDIA driver; this is cheap, while importing torch takes seconds."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
