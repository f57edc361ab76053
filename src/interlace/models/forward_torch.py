"""Forward pass of a model of the Llama family in PyTorch's own ops.

Each row is one token. Rows meet only in attention, which the caller supplies, because only the caller knows what the
rows are and where their caches lie: see ``forward_numpy``, which defines the result.

This module imports without PyTorch: callers pass the module ``torch``. Timings compare with these ops under
``torch.compile``, so a change here needs a measurement (``benchmarks/decode.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from interlace.models.llama import LlamaShape

#: Maps layer, queries (n, heads, d), keys and values (n, kv_heads, d), both after RoPE, to outputs that reshape to
#: (n, heads * d).
Attend = Callable[[int, Any, Any, Any], Any]
#: Weights that multiply the same tokens, by the name of the fused matrix that stacks their rows.
FUSED_WEIGHTS: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


def run_layers(
    torch: Any, shape: LlamaShape, weights: Mapping[str, Any], tokens: Any, angles: Any, attend: Attend
) -> Any:
    """Return the output (n, hidden) of the last layer for n tokens.

    Args:
        torch: the module ``torch``.
        weights: weights by the names of ``list_weights``; others are ignored. The fused matrices of ``FUSED_WEIGHTS``,
            such as ``layers.0.qkv`` and ``layers.0.qkv_bias``, replace the weights that they stack.
        tokens: (n,), token ids.
        angles: (n, 1, head_dim), cosines and then sines of each token's position. RoPE is computed in their dtype or in
            that of the weights, whichever is wider.
    """
    functional, count, d = torch.nn.functional, len(tokens), shape.head_dim
    cos, sin = angles.chunk(2, -1)

    def multiply(x: Any, layer: int, fused: str, widths: tuple[int, ...]) -> Any:
        """Return the products of x and the weights of ``FUSED_WEIGHTS[fused]``, of these widths."""
        weight, bias = (weights.get(f"layers.{layer}.{fused}{end}") for end in ("", "_bias"))
        if weight is not None:
            return functional.linear(x, weight, bias).split(widths, -1)
        names = [f"layers.{layer}.{name}" for name in FUSED_WEIGHTS[fused]]
        return [functional.linear(x, weights[name], weights.get(f"{name}_bias")) for name in names]

    heads = shape.heads * d, shape.kv_heads * d, shape.kv_heads * d
    x = functional.embedding(tokens, weights["embed"])
    for layer in range(shape.layers):
        at = f"layers.{layer}."
        h = _normalize(torch, shape, x, weights[f"{at}input_norm"])
        q, k, v = (made.view(count, -1, d) for made in multiply(h, layer, "qkv", heads))
        if shape.qk_norm:
            q = _normalize(torch, shape, q, weights[f"{at}q_norm"])
            k = _normalize(torch, shape, k, weights[f"{at}k_norm"])
        out = attend(layer, rotate(torch, q, cos, sin), rotate(torch, k, cos, sin), v)
        x = x + functional.linear(out.reshape(count, -1), weights[f"{at}o"])
        h = _normalize(torch, shape, x, weights[f"{at}post_norm"])
        gate, up = multiply(h, layer, "gate_up", (shape.ffn, shape.ffn))
        x = x + functional.linear(functional.silu(gate) * up, weights[f"{at}down"])
    return x


def compute_logits(torch: Any, shape: LlamaShape, weights: Mapping[str, Any], x: Any) -> Any:
    """Return the logits (n, vocabulary) of outputs (n, hidden) of the last layer."""
    head = weights["embed" if shape.tied else "head"]
    return torch.nn.functional.linear(_normalize(torch, shape, x, weights["norm"]), head)


def rotate(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Apply RoPE (Su et al., arXiv 2104.09864) to x (..., d) as transformers does: pair i with i + d/2.

    Args:
        cos, sin: (..., d/2), of each pair's angle.
    """
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def _normalize(torch: Any, shape: LlamaShape, x: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, shape.eps)
