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


class LayerOps:
    """The ops of a layer around its products and attention. Subclasses compute the same in fewer kernels."""

    def __init__(self, torch: Any, shape: LlamaShape) -> None:
        self.torch, self.shape = torch, shape

    def add_and_normalize(self, x: Any, increment: Any | None, weight: Any) -> tuple[Any, Any]:
        """Return the residual stream (n, hidden) after an increment, and its RMS norm."""
        x = x if increment is None else x + increment
        return x, _normalize(self.torch, self.shape, x, weight)

    def rotate_heads(
        self, layer: int, q: Any, k: Any, v: Any, norms: tuple[Any, Any] | None, angles: Any
    ) -> tuple[Any, Any]:
        """Return queries (n, heads, d) and keys (n, kv_heads, d) after their norms, if the model has them, and RoPE."""
        if norms is not None:
            q, k = (_normalize(self.torch, self.shape, x, weight) for x, weight in zip((q, k), norms, strict=True))
        cos, sin = angles.chunk(2, -1)
        return rotate(self.torch, q, cos, sin), rotate(self.torch, k, cos, sin)

    def apply_gate(self, gate: Any, up: Any) -> Any:
        """Return ``silu(gate) * up``."""
        return self.torch.nn.functional.silu(gate) * up


def run_layers(
    torch: Any,
    shape: LlamaShape,
    weights: Mapping[str, Any],
    tokens: Any,
    angles: Any,
    attend: Attend,
    wanted: Any | None = None,
    ops: LayerOps | None = None,
) -> Any:
    """Return the output (n, hidden) of the last layer for n tokens, or for those that are wanted.

    Args:
        torch: the module ``torch``.
        weights: weights by the names of ``list_weights``; others are ignored. The fused matrices of ``FUSED_WEIGHTS``,
            such as ``layers.0.qkv`` and ``layers.0.qkv_bias``, replace the weights that they stack.
        tokens: (n,), token ids.
        angles: (n, 1, head_dim), cosines and then sines of each token's position. RoPE is computed in their dtype or in
            that of the weights, whichever is wider.
        wanted: (m,), indices of the tokens whose outputs are returned; the last layer attends from all of them, and
            computes what follows for these alone.
        ops: ops around the products; PyTorch's own by default.
    """
    functional, count, d = torch.nn.functional, len(tokens), shape.head_dim
    ops = LayerOps(torch, shape) if ops is None else ops

    def multiply(x: Any, layer: int, fused: str, widths: tuple[int, ...]) -> Any:
        """Return the products of x and the weights of ``FUSED_WEIGHTS[fused]``, of these widths."""
        weight, bias = (weights.get(f"layers.{layer}.{fused}{end}") for end in ("", "_bias"))
        if weight is not None:
            return functional.linear(x, weight, bias).split(widths, -1)
        names = [f"layers.{layer}.{name}" for name in FUSED_WEIGHTS[fused]]
        return [functional.linear(x, weights[name], weights.get(f"{name}_bias")) for name in names]

    heads = shape.heads * d, shape.kv_heads * d, shape.kv_heads * d
    x, increment = functional.embedding(tokens, weights["embed"]), None
    for layer in range(shape.layers):
        at = f"layers.{layer}."
        x, h = ops.add_and_normalize(x, increment, weights[f"{at}input_norm"])
        q, k, v = (made.view(count, -1, d) for made in multiply(h, layer, "qkv", heads))
        norms = (weights[f"{at}q_norm"], weights[f"{at}k_norm"]) if shape.qk_norm else None
        q, k = ops.rotate_heads(layer, q, k, v, norms, angles)
        out = attend(layer, q, k, v).reshape(count, -1)
        if wanted is not None and layer == shape.layers - 1:
            x, out = x.index_select(0, wanted), out.index_select(0, wanted)
        x, h = ops.add_and_normalize(x, functional.linear(out, weights[f"{at}o"]), weights[f"{at}post_norm"])
        gate, up = multiply(h, layer, "gate_up", (shape.ffn, shape.ffn))
        increment = functional.linear(ops.apply_gate(gate, up), weights[f"{at}down"])
    return x + increment


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
