"""Small device tensors whose values the host decides, such as positions and page tables.

Changes are made in NumPy arrays, and one copy brings all of them to the device:

    mirror.host["position"][slot] = 7         nothing is enqueued
    mirror.mark()
    mirror.upload()                           one copy, which does not wait for the device
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray

_ALIGN = 16  # elements to which tensors begin: 64 bytes


class MirroredTensors:
    """Device tensors of 4-byte elements, parts of one allocation, and their values on the host; all zero at first.

    Args:
        fields: shape and dtype by name.

    Attributes:
        host: values as the host knows them.
        tensors: values on the device as of the last ``upload``, advanced by launches.
    """

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
        offsets, end = {}, 0
        for name, (shape, _) in fields.items():
            offsets[name] = end
            end += -(-prod(shape) // _ALIGN) * _ALIGN
        self._values = torch.zeros(end, dtype=torch.int32)
        self._device_values = torch.zeros(end, dtype=torch.int32, device=device)
        self.host: Mapping[str, NDArray[Any]] = {}
        self.tensors: Mapping[str, torch.Tensor] = {}
        for name, (shape, dtype) in fields.items():
            part = slice(offsets[name], offsets[name] + prod(shape))
            self.host = {**self.host, name: self._values[part].view(dtype).view(shape).numpy()}
            self.tensors = {**self.tensors, name: self._device_values[part].view(dtype).view(shape)}
        self._has_changed = False

    def mark(self) -> None:
        """Note that host values have changed."""
        self._has_changed = True

    @torch.inference_mode()
    def upload(self) -> None:
        """Enqueue the copy of all values on the current stream, if any has changed."""
        if not self._has_changed:
            return
        self._has_changed = False
        values = self._values
        if self._device_values.is_cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
        self._device_values.copy_(values, non_blocking=True)
