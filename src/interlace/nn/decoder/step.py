"""Steps and prompts in PyTorch's own ops, with a static KV cache that they write in place.

Example of a step, for one sequence of a batch, with two KV heads of width 4, at position 2:

    x            (1, hidden)     the embedding of this step's token
    q, k, v      (1, heads, 4), (1, 2, 4), (1, 2, 4)
    k_cache[:, :, 2] = rotated k, v_cache[:, :, 2] = v
    attention of q to rows 0, 1, 2 of the cache

Cache rows beyond a sequence's length are undefined, and may be NaN from an earlier sequence. Attention multiplies
masked rows by zero, so these rows are replaced by zeros first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import scaled_dot_product_attention

from interlace.models.forward_torch import compute_logits, run_layers
from interlace.models.llama import LlamaShape
from interlace.nn.decoder.cache import KVCache

Weights = Mapping[str, torch.Tensor]


def decode(
    shape: LlamaShape,
    weights: Weights,
    rope: torch.Tensor,
    cache: KVCache,
    tokens: torch.Tensor,
    position: torch.Tensor,
    reach: int,
) -> torch.Tensor:
    """Append one token per sequence to the cache; return logits (batch, vocabulary) in the dtype of the weights.

    Args:
        weights: weights by the names of ``wanted``.
        rope: (capacity, head_dim) fp32, cosines and then sines of each position.
        tokens: (batch,), token ids.
        position: (batch,), number of cached tokens of each sequence.
        reach: number of cache rows that attention reads, greater than any position.
    """
    seen = torch.arange(reach, device=tokens.device) <= position[:, None]
    hidden, rows = ~seen[:, None, :, None], cache.locate_rows(position)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write_rows(layer, rows, k, v)
        keys, values = (cached.masked_fill(hidden, 0) for cached in cache.read_each(layer, reach))
        return scaled_dot_product_attention(q[:, :, None], keys, values, seen[:, None, None], enable_gqa=True)

    with torch.autocast(tokens.device.type, enabled=False):  # caches have the dtype of the weights
        x = run_layers(torch, shape, weights, tokens, rope[position][:, None], attend)
        logits: torch.Tensor = compute_logits(torch, shape, weights, x)
        return logits


def prefill(
    shape: LlamaShape, weights: Weights, rope: torch.Tensor, cache: KVCache, ids: torch.Tensor, slot: int, length: int
) -> torch.Tensor:
    """Append tokens after the ``length`` cached tokens of a slot; return the logits (vocabulary,) of the last token.

    Args:
        ids: (count,), at least one token id.
    """
    end = length + len(ids)
    behind = torch.ones(len(ids), end, dtype=torch.bool, device=ids.device).tril(length) if length else None

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write(layer, slot, length, k.transpose(0, 1), v.transpose(0, 1))
        queries, cached = q.transpose(0, 1)[None], cache.read(layer, slot, end)
        out = scaled_dot_product_attention(queries, *cached, behind, is_causal=behind is None, enable_gqa=True)
        return out[0].transpose(0, 1)

    with torch.autocast(ids.device.type, enabled=False):
        x = run_layers(torch, shape, weights, ids, rope[length:end, None], attend)
        logits: torch.Tensor = compute_logits(torch, shape, weights, x[-1:])
        return logits[0]
