"""Weights of a decoder and its RoPE table."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from interlace.core.errors import DTypeError, GraphError, ShapeError
from interlace.models.llama import LlamaShape
from interlace.models.weights import list_weights
from interlace.nn.decoder.cache import check_memory

_MIN_BYTES = 2  # smallest element that PyTorch multiplies on every device


def check_weights(shape: LlamaShape, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Check the weights of a shape, and return them contiguous; only non-contiguous weights are copied.

    Raises:
        GraphError: a weight is missing or unknown, has no data, or is on a different device from the rest.
        ShapeError, DTypeError: a weight has the wrong extents, or a different dtype from the rest.
    """
    extents = list_weights(shape)
    missing, unknown = sorted(extents.keys() - weights.keys()), sorted(weights.keys() - extents.keys())
    if missing or unknown:
        told = [f"{what} {', '.join(names[:4])}" for what, names in (("lacks", missing), ("has", unknown)) if names]
        raise GraphError(f"a model of {shape} has other weights: this one {' and '.join(told)}; name them as `wanted`")
    first = weights["embed"]
    for name, extent in extents.items():
        weight = weights[name]
        if tuple(weight.shape) != extent:
            raise ShapeError(f"weight {name!r} has shape {tuple(weight.shape)}; for {shape} it must be {extent}")
        if weight.dtype != first.dtype:
            raise DTypeError(f"weight {name!r} is {weight.dtype}, embed is {first.dtype}; cast them to one dtype")
        if weight.device != first.device:
            raise GraphError(f"weight {name!r} is on {weight.device}, embed is on {first.device}; use one device")
    if not first.dtype.is_floating_point or first.dtype.itemsize < _MIN_BYTES:
        raise DTypeError(f"the weights are {first.dtype}; cast or dequantise them, as to {torch.get_default_dtype()}")
    if first.device.type == "meta":
        raise GraphError("the weights have no data, they are on the device 'meta'; load them first")
    return {name: weights[name].detach().contiguous() for name in extents}


def count_streamed_bytes(shape: LlamaShape, weights: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of weights that a step reads in full: all except an untied embedding, which is only indexed."""
    return sum(weight.nbytes for name, weight in weights.items() if name != "embed" or shape.tied)


def build_rope_table(inv_freq: torch.Tensor, capacity: int, scaling: float = 1.0) -> torch.Tensor:
    """Build the RoPE table (capacity, head_dim), fp32, on the device of ``inv_freq``: cosines, then sines.

    Args:
        inv_freq: (head_dim / 2,), rotation frequencies in radians per position.
        scaling: factor of cosines and sines in scaled RoPE.

    Raises:
        DecodeError: the table does not fit in memory.
    """
    check_memory("cosines and sines of RoPE", 3 * 8 * capacity * len(inv_freq), inv_freq.device)
    angles = torch.arange(capacity, device=inv_freq.device)[:, None] * inv_freq.detach().float()
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling
