"""Devices that launches run on."""

from __future__ import annotations

from functools import cache

import torch

from interlace.nn.plain import has_triton


def device_fallback_reason(device: torch.device) -> str | None:
    """Return the reason why no launch can run on a device, or None if launches can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"tensors are on a device of type {device.type!r}, the kernels are for NVIDIA GPUs"
    capability = _get_capability(device)
    if capability != (9, 0):
        return "the GPU has compute capability {}.{}, the kernels are for 9.0 (Hopper)".format(*capability)
    if not has_triton():
        return "triton is missing; `pip install -e '.[gpu]'`"
    return None


@cache
def _get_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
