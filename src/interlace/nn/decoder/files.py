"""Loading of a model's weights from disk to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import torch

from interlace.core.errors import NoDeviceError
from interlace.models.pretrained import PretrainedModel
from interlace.models.weights import list_weights
from interlace.nn.decoder.cache import check_memory, count_cache_bytes

#: Wrapper of an iterable that may display its progress.
Progress = Callable[[Iterable[str]], Iterable[str]]


def select_device(requested: str | torch.device | None) -> torch.device:
    """Return the device for the weights: by default the current GPU, if there is one.

    Raises:
        NoDeviceError: PyTorch finds no such device on this machine, or it is neither a CPU nor a GPU.
    """
    try:
        device = torch.device(requested or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError):
        raise NoDeviceError(f"device is {requested!r}; name one as PyTorch does, such as 'cuda:0' or 'cpu'") from None
    if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()):
        return device
    raise NoDeviceError(f"device is {requested!r}; PyTorch sees the CPU and {torch.cuda.device_count()} CUDA GPUs")


def load_weights(
    model: PretrainedModel, device: torch.device, cache_positions: int, progress: Progress
) -> dict[str, torch.Tensor]:
    """Read all weights of a model, in bf16 on a GPU and in fp32 on a CPU.

    Args:
        cache_positions: total KV-cache capacity of all sequences in tokens, which must also fit in memory.

    Raises:
        ModelFileError: the weights cannot be read.
        DecodeError: the weights and the cache do not fit in memory.
    """
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    weights = dtype.itemsize * sum(map(prod, list_weights(model.shape).values()))
    check_memory("weights and cache", weights + count_cache_bytes(model.shape, cache_positions, dtype), device)
    return {name: torch.from_numpy(model.read(name)).to(device, dtype) for name in progress(model.names)}
