"""Facts about a device from torch and the driver: presence, spec, dtypes, occupancy."""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from typing import Any

import numpy as np

from interlace.core.devices import CPU, DEFAULT_GPU, DeviceSpec, Properties, resolve_spec
from interlace.core.dtypes import dtype
from interlace.core.errors import NoDeviceError


class EstimatedDeviceWarning(UserWarning):
    """Warning that predictions for the present GPU rest on figures that were not measured on it."""


def open_device(name: str) -> tuple[Any, Any]:
    """Return (torch, device), or raise NoDeviceError that names what is missing."""
    try:
        import torch
        import triton
    except ImportError as error:
        raise NoDeviceError(f"{error}; device executors need `pip install -e '.[gpu]'`") from None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NoDeviceError(f"{name!r} is no device: {error}") from None
    interpret = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cpu":
        if not interpret:
            raise NoDeviceError(
                "on a CPU, kernels run under the Triton interpreter; set TRITON_INTERPRET=1 before Python starts, "
                "or use the reference executor"
            )
        check_interpreter(triton.__version__, np.__version__)
        return torch, device
    if device.type in ("meta", "cuda") and interpret:
        raise NoDeviceError(
            f"device {name!r} needs Triton as a compiler; start Python without TRITON_INTERPRET=1, or use device='cpu'"
        )
    if device.type == "meta":
        return torch, device
    if device.type != "cuda":
        raise NoDeviceError(f"device {name!r} is neither a CUDA GPU nor the CPU")
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "this needs a CUDA GPU, and torch sees no CUDA GPU here. Without one `interlace run` and the reference "
            "executor work, and device executors with RunOptions(device='cpu') and TRITON_INTERPRET=1"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise NoDeviceError(f"device {name!r} asked for, but there are {torch.cuda.device_count()} CUDA GPUs")
    return torch, torch.device("cuda", index)


def check_interpreter(triton: str, numpy: str) -> None:
    """Raise NoDeviceError if the interpreter of this version of Triton fails with this version of NumPy.

    Up to Triton 3.6 the interpreter converts arrays of one dimension to scalars, which NumPy refuses from 2.4 on.
    """

    def release(version: str) -> list[int]:
        return [int(part) for part in version.split(".")[:2]]

    if release(triton) < [3, 7] and release(numpy) >= [2, 4]:
        raise NoDeviceError(
            f"the interpreter of Triton {triton} does not run with NumPy {numpy}; `pip install 'numpy<2.4'`, "
            "or Triton 3.7 or later"
        )


def find_spec(name: str) -> DeviceSpec:
    """Return the spec of a torch device; for "meta", which only compiles, the default GPU's.

    Raises:
        NoDeviceError: as ``open_device``.
    """
    torch, device = open_device(name)
    if device.type == "cuda":
        return detect_spec(torch, device)
    return DEFAULT_GPU if device.type == "meta" else CPU


def detect_spec(torch: Any, device: Any) -> DeviceSpec:
    """Return the spec of a present CUDA device, with an ``EstimatedDeviceWarning`` if its ceilings are estimates.

    The warning is given once for each kind of GPU.
    """
    p = torch.cuda.get_device_properties(device)
    return _build_spec(
        Properties(
            name=p.name,
            capability=(p.major, p.minor),
            sms=p.multi_processor_count,
            smem_bytes=p.shared_memory_per_block_optin,
            l2_bytes=p.L2_cache_size,
            clock_hz=getattr(p, "clock_rate", 0) * 1e3,  # torch before 2.9 reports none of these
            bus_bytes_per_s=2 * getattr(p, "memory_clock_rate", 0) * 1e3 * getattr(p, "memory_bus_width", 0) / 8,
        )
    )


@cache
def _build_spec(properties: Properties) -> DeviceSpec:
    spec = resolve_spec(properties)
    if spec.estimate_note:
        warnings.warn(spec.estimate_note, EstimatedDeviceWarning, stacklevel=3)
    return spec


def check_generation(name: str, capability: tuple[int, int], needed: int) -> None:
    """Raise NoDeviceError unless a device is of the generation that CUDA C++ launches require."""
    if capability[0] != needed:
        raise NoDeviceError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, this executor needs {needed}.0; use the "
            "persistent executor"
        )


@cache
def get_torch_dtype(torch: Any, name: str) -> Any:
    """Return the torch dtype that corresponds to one of Interlace's dtypes, by name."""
    return getattr(torch, dtype(name).torch)


def count_resident_blocks(compiled: Any, torch: Any, device: Any) -> int:
    """Return the number of thread blocks of a compiled kernel that the device keeps resident (occupancy)."""
    compiled._init_handles()
    blocks = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks),
        ctypes.c_void_p(compiled.function),
        ctypes.c_int(compiled.metadata.num_warps * 32),
        ctypes.c_size_t(compiled.metadata.shared),
    )
    if status:
        raise NoDeviceError(f"the driver could not tell the occupancy (error {status})")
    return int(blocks.value) * int(torch.cuda.get_device_properties(device).multi_processor_count)
