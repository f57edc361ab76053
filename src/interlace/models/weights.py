"""Weights of a model of the Llama family, by the names of its decode step."""

from __future__ import annotations

from interlace.models.llama import LlamaShape


def list_weights(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Return names and extents of all weights of a shape; linear weights are (outputs, inputs)."""
    queries, keys, hidden = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, (shape.hidden,)
    layer: dict[str, tuple[int, ...]] = {
        "input_norm": hidden,
        "q": (queries, shape.hidden),
        "k": (keys, shape.hidden),
        "v": (keys, shape.hidden),
        "o": (shape.hidden, queries),
        "post_norm": hidden,
        "gate": (shape.ffn, shape.hidden),
        "up": (shape.ffn, shape.hidden),
        "down": (shape.hidden, shape.ffn),
    }
    if shape.qkv_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if shape.qk_norm:
        layer |= {"q_norm": (shape.head_dim,), "k_norm": (shape.head_dim,)}
    table = (shape.vocabulary, shape.hidden)
    found = {f"layers.{l}.{name}": extents for l in range(shape.layers) for name, extents in layer.items()}
    return {"embed": table, **found, "norm": hidden, **({} if shape.tied else {"head": table})}
