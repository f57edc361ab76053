"""Forward pass of a model of the Llama family in NumPy: its definition, computed in the precision of the tensors.

Each row is one token. Rows meet only in attention, which the caller supplies, because only the caller knows what the
rows are: tokens of one sequence, or one token each of several sequences with their caches.

    layer of ``compute_logits``                  ``attend(layer, q, k, v)``, here for rows of one sequence
    x (3, hidden) --> q (3, heads, d)            row 0: softmax over row 0
                      k, v (3, kv_heads, d)      row 1: softmax over rows 0, 1
                                                 row 2: softmax over rows 0, 1, 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from interlace.kernels.matmul import Activation
from interlace.kernels.rms_norm import compute_rms_norm
from interlace.kernels.rope import apply_rope
from interlace.models.llama import LlamaShape

#: Maps layer, queries (n, heads, d), keys and values (n, kv_heads, d), both after RoPE, to outputs shaped as queries.
Attend = Callable[[int, Any, Any, Any], Any]


def compute_logits(shape: LlamaShape, weights: Mapping[str, Any], tokens: Any, angles: Any, attend: Attend) -> Any:
    """Return the logits (n, vocabulary) of n tokens.

    Args:
        weights: weights by the names of ``list_weights``; others are ignored.
        tokens: (n,), token ids.
        angles: (n, head_dim), cosines and then sines of each token's position.
    """
    x, eps = weights["embed"][tokens], shape.eps
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        w = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        h = compute_rms_norm(x, w["input_norm"], eps)
        heads = (h @ w[name].T + w.get(f"{name}_bias", 0.0) for name in "qkv")
        q, k, v = (made.reshape(len(tokens), -1, shape.head_dim) for made in heads)
        q, k = (
            np.stack([apply_rope(row, angle, norm, eps) for row, angle in zip(made, angles, strict=True)])
            for made, norm in ((q, w.get("q_norm")), (k, w.get("k_norm")))
        )
        x = x + attend(layer, q, k, v).reshape(len(tokens), -1) @ w["o"].T
        h = compute_rms_norm(x, w["post_norm"], eps)
        x = x + (Activation.SILU(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T
    return compute_rms_norm(x, weights["norm"], eps) @ weights["embed" if shape.tied else "head"].T


def compute_attention(q: Any, keys: Any, values: Any) -> Any:
    """Return the outputs (heads, d) of one token's queries (heads, d) over keys and values (kv_heads, n, d)."""
    out, group = np.zeros_like(q), len(q) // len(keys)
    for head, query in enumerate(q):
        scores = keys[head // group] @ query / np.sqrt(len(query))
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[head // group] / weights.sum()
    return out
