"""Forward pass of a language model in PyTorch's own ops, with a static KV cache that it writes in place.

Example of a step, for one sequence of a batch, with two KV heads of width 4, at position 2:

    x            (1, 1, hidden)     the embedding of this step's token
    q, k, v      (1, heads, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4)
    k_cache[:, :, 2] = rotated k, v_cache[:, :, 2] = v
    attention of q to rows 0, 1, 2 of the cache

Cache rows beyond a sequence's length are undefined, and may be NaN from an earlier sequence. Attention multiplies
masked rows by zero, so these rows are replaced by zeros first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from interlace.models.llama import LlamaShape
from interlace.nn.decoder.cache import KVCache

Weights = Mapping[str, torch.Tensor]
#: Maps layer, queries (n, heads, t, d), keys and values (n, kv_heads, t, d) to attention outputs shaped like queries.
_Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


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

    hidden = ~seen[:, None, :, None]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write_each(layer, position, k[:, :, 0], v[:, :, 0])
        keys, values = (rows.masked_fill(hidden, 0) for rows in cache.read_each(layer, reach))
        return functional.scaled_dot_product_attention(q, keys, values, seen[:, None, None], enable_gqa=True)

    with torch.autocast(tokens.device.type, enabled=False):  # caches have the dtype of the weights
        x = _run_layers(shape, weights, rope[position][:, None], tokens[:, None], attend)
        return _compute_logits(shape, weights, x[:, 0])


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
        cache.write(layer, slot, length, k[0], v[0])
        return functional.scaled_dot_product_attention(
            q, *cache.read(layer, slot, end), behind, is_causal=behind is None, enable_gqa=True
        )

    with torch.autocast(ids.device.type, enabled=False):
        x = _run_layers(shape, weights, rope[None, length:end], ids[None], attend)
        return _compute_logits(shape, weights, x[0, -1:])[0]


def _run_layers(
    shape: LlamaShape, weights: Weights, rope: torch.Tensor, ids: torch.Tensor, attend: _Attend
) -> torch.Tensor:
    """Return the output (n, t, hidden) of the last layer for ids (n, t).

    Args:
        rope: (n, t, head_dim), cosines and sines of these tokens.
    """
    x = functional.embedding(ids, weights["embed"])
    cos, sin = (half.repeat(1, 1, 2)[:, None] for half in rope.chunk(2, dim=-1))
    for layer in range(shape.layers):
        own = {name: weights.get(f"layers.{layer}.{name}") for name in _LAYER_WEIGHTS}
        h = functional.rms_norm(x, (shape.hidden,), own["input_norm"], shape.eps)

        def heads(name: str, h: torch.Tensor = h, own: dict[str, torch.Tensor | None] = own) -> torch.Tensor:
            weight = own[name]
            assert weight is not None
            made = functional.linear(h, weight, own[f"{name}_bias"])
            return made.view(*made.shape[:-1], -1, shape.head_dim).transpose(1, 2)

        q, k, v = heads("q"), heads("k"), heads("v")
        if shape.qk_norm:
            q = functional.rms_norm(q, (shape.head_dim,), own["q_norm"], shape.eps)
            k = functional.rms_norm(k, (shape.head_dim,), own["k_norm"], shape.eps)
        found = attend(layer, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        x = x + functional.linear(found.transpose(1, 2).flatten(2), weights[f"layers.{layer}.o"])
        h = functional.rms_norm(x, (shape.hidden,), own["post_norm"], shape.eps)
        gate, up, down = (weights[f"layers.{layer}.{name}"] for name in ("gate", "up", "down"))
        x = x + functional.linear(functional.silu(functional.linear(h, gate)) * functional.linear(h, up), down)
    return x


_LAYER_WEIGHTS = ("input_norm", "q", "k", "v", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "post_norm")


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE (Su et al., arXiv 2104.09864) as transformers does: rotate elements i and i + d/2 by frequency i."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def _compute_logits(shape: LlamaShape, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    head = weights["embed"] if shape.tied else weights["head"]
    return functional.linear(functional.rms_norm(x, (shape.hidden,), weights["norm"], shape.eps), head)
