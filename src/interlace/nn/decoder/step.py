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


def prefill_padded(
    shape: LlamaShape,
    weights: Weights,
    rope: torch.Tensor,
    cache: KVCache,
    ids: torch.Tensor,
    slot: torch.Tensor,
    start: torch.Tensor,
    last: torch.Tensor,
    reach: int,
) -> torch.Tensor:
    """Append tokens to a slot as ``prefill`` does, where everything but shapes is data; return logits (1, vocabulary).

    Rows of padding write what the last token writes, so the cache has no other rows than those of the tokens.

    Args:
        ids: (count,), token ids; those after row ``last`` are padding.
        slot, start, last: (1,), the slot, its number of cached tokens, and the row whose logits are returned.
        reach: number of cache rows that attention reads, at least ``start + last + 1``; 0 for tokens that begin a
            sequence, which attend to themselves alone.
    """
    row = torch.arange(len(ids), device=ids.device).minimum(last)
    position = start + row
    rows, group = cache.locate_tokens(slot, position, row), shape.group
    at = torch.arange(reach, device=ids.device)
    seen, undefined = at <= position[:, None], (at > start + last)[:, None]
    # In the dtype of queries, for the kernels that take a mask; the queries of a group follow one another.
    mask = torch.zeros(seen.shape, dtype=weights["embed"].dtype, device=ids.device).masked_fill(~seen, -torch.inf)
    mask = mask.repeat(group, 1)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write_rows(layer, rows, k, v)
        if not reach:
            q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
        keys, values = (cached.masked_fill(undefined, 0) for cached in cache.read_slot(layer, slot, reach))
        by_group = q.reshape(len(q), -1, group, q.shape[-1]).permute(1, 2, 0, 3).flatten(1, 2)[None]
        out = scaled_dot_product_attention(by_group, keys, values, mask)
        return out.reshape(-1, group, len(q), q.shape[-1]).permute(2, 0, 1, 3)

    with torch.autocast(ids.device.type, enabled=False):
        x = run_layers(torch, shape, weights, ids, rope[position][:, None], attend, last)
        logits: torch.Tensor = compute_logits(torch, shape, weights, x)
        return logits
