"""Weights of a model on disk, as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import torch

from interlace.core.errors import DecodeError
from interlace.core.memory import available_bytes
from interlace.workloads.trained import Trained
from interlace.workloads.weights import wanted

#: Iterates over what it is given, and may show how far that has come.
Progress = Callable[[Iterable[str]], Iterable[str]]


def read(
    model: Trained, device: torch.device, dtype: torch.dtype, cache_positions: int, progress: Progress
) -> dict[str, torch.Tensor]:
    """All weights of a model.

    Args:
        cache_positions: of all sequences together, for which there must be room besides.

    Raises:
        ModelFileError: weights that cannot be read.
        DecodeError: weights and cache do not fit in memory.
    """
    shape = model.shape
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * cache_positions
    needed = dtype.itemsize * (sum(map(prod, wanted(shape).values())) + cache)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        raise DecodeError(
            f"weights and cache take {needed / 1e9:.3g} GB, and {device} has {free / 1e9:.3g} GB free; use a smaller "
            "model, batch or capacity"
        )
    return {name: torch.from_numpy(model.read(name)).to(device, dtype) for name in progress(model.names)}
