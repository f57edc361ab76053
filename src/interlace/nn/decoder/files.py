"""Weights of a model on disk, as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import torch

from interlace.nn.decoder.cache import cache_bytes, check_memory
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
    weights = dtype.itemsize * sum(map(prod, wanted(model.shape).values()))
    check_memory("weights and cache", weights + cache_bytes(model.shape, cache_positions, dtype), device)
    return {name: torch.from_numpy(model.read(name)).to(device, dtype) for name in progress(model.names)}
