"""The shape of a language model of the Llama family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LlamaShape:
    """A decoder of RMSNorm, attention with grouped heads and RoPE, and a gated FFN with silu.

    Attributes:
        layers: how many, all alike.
        hidden: width between layers.
        ffn: inner width of the FFN.
        heads, kv_heads: of queries, and of keys and values; as many queries share each of the latter.
        head_dim: width of a head.
        vocabulary: ids that there are.
        eps: what RMSNorm adds to the mean square.
        qkv_bias: queries, keys and values have biases, as in Qwen 2.
        qk_norm: an RMSNorm over each head of queries and of keys, as in Qwen 3.
        tied: the embedding is the weight of the last product too.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
