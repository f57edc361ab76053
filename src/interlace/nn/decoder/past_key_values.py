"""Copies of another prefill's keys and values, such as a model's own, into a decoder's KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from interlace.core.errors import DTypeError, GraphError, ShapeError
from interlace.nn.decoder.cache import KVCache
from interlace.nn.decoder.ids import find_fault

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


def extract_pairs(past_key_values: Any) -> Pairs:
    """Return keys and values by layer of a ``transformers`` ``KVCache``, or of pairs as in earlier releases.

    If a layer has memory for more positions than were written, only the written positions are returned.

    Raises:
        GraphError: the past is neither, or has tensors without data or of another layout, or a layer holds fewer
            positions than were written to it, as sliding windows do.
    """
    layers = getattr(past_key_values, "layers", past_key_values)
    if not isinstance(layers, Iterable):
        raise GraphError(
            f"past is a {type(past_key_values).__name__}; pass past_key_values, or keys and values by layer"
        )
    return [_extract_pair(number, layer) for number, layer in enumerate(layers)]


def _extract_pair(number: int, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    pair = (layer.keys, layer.values) if hasattr(layer, "keys") else layer
    if not isinstance(pair, Sequence) or len(pair) < 2 or not all(isinstance(t, torch.Tensor) for t in pair[:2]):
        raise GraphError("past has a layer without keys and values; run the model on the prompt first")
    keys, values = pair[:2]
    for name, tensor in (("keys", keys), ("values", values)):
        if fault := find_fault(tensor):
            raise GraphError(f"{name} of layer {number} of past are a tensor that {fault}")
    if not hasattr(layer, "get_seq_length") or keys.ndim != 4:
        return keys, values
    given, held = int(layer.get_seq_length()), keys.shape[-2]
    if given > held:
        raise GraphError(
            f"layer {number} of past holds {held} of the {given} positions that it was given; pass a cache that keeps "
            "all as they are, neither a sliding window nor a quantised one"
        )
    return keys[:, :, :given], values[:, :, :given]


def count_positions(pairs: Pairs, cache: KVCache) -> int:
    """Return the number of tokens in the pairs, after checking that they match the cache.

    Raises:
        ShapeError, DTypeError: the pairs do not match the cache.
    """
    if len(pairs) != len(cache.k):
        raise ShapeError(f"past has {len(pairs)} layers, the model {len(cache.k)}")
    _, heads, _, width = cache.k[0].shape
    length = pairs[0][0].shape[-2] if pairs[0][0].ndim == 4 else 0
    for layer, pair in enumerate(pairs):
        for name, tensor in zip(("keys", "values"), pair, strict=True):
            if tuple(tensor.shape) != (1, heads, length, width):
                raise ShapeError(
                    f"{name} of layer {layer} of past have shape {tuple(tensor.shape)}; they are (1, {heads}, "
                    f"positions, {width}) of one sequence, without padding"
                )
            if tensor.dtype != cache.k[0].dtype:
                raise DTypeError(f"{name} of layer {layer} of past are {tensor.dtype}, the cache {cache.k[0].dtype}")
    return length


def fill_slot(cache: KVCache, slot: int, pairs: Pairs, count: int) -> None:
    """Copy the keys and values of the first ``count`` tokens into a slot."""
    for layer, (keys, values) in enumerate(pairs):
        cache.write(layer, slot, 0, keys[0, :, :count], values[0, :, :count])
