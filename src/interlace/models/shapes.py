"""Shapes of models of the Llama family."""

from __future__ import annotations

from dataclasses import dataclass, fields

from interlace.core.arguments import check_int, check_type
from interlace.core.errors import ShapeError


@dataclass(frozen=True)
class LlamaShape:
    """Shape of a model of the Llama family: Llama 2 and 3, Mistral, Qwen 2.5 and 3, SmolLM 2.

    Attributes:
        layers: number of transformer layers.
        hidden, ffn: model width, and width between the matmuls of an FFN.
        heads, kv_heads: number of query heads, and of key and value heads.
        head_dim: elements of a head.
        vocabulary: number of tokens.
        eps: epsilon of every RMS normalisation.
        qkv_bias: True if q, k and v have biases, as in Qwen 2.
        qk_norm: True if heads of q and k are normalised, as in Qwen 3.
        tied: True if the head shares the embedding table.

    Raises:
        ArgumentError: an attribute has the wrong type.
        ShapeError: an extent is not positive, or ``heads`` is not a multiple of ``kv_heads``.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "eps":
                check_type(value, float, "LlamaShape", "eps", "1e-5")
            elif isinstance(field.default, bool):
                check_type(value, bool, "LlamaShape", field.name, "True")
            elif check_int(value, "LlamaShape", field.name) < 1:
                raise ShapeError(f"LlamaShape has {field.name} {value}; use a positive number")
        if self.heads % self.kv_heads:
            raise ShapeError(
                f"LlamaShape has {self.heads} heads and {self.kv_heads} of keys, each of which serves as many; use a "
                "number of heads that is a multiple of that of keys (heads, kv_heads)"
            )

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


#: Shapes of well-known models, by name.
LLAMAS = {
    "llama3.2-1b": LlamaShape(16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "llama3.1-8b": LlamaShape(32, 4096, 14336, 32, 8, 128, 128256),
    "smollm2-135m": LlamaShape(30, 576, 1536, 9, 3, 64, 49152, tied=True),
    "qwen2.5-0.5b": LlamaShape(24, 896, 4864, 14, 2, 64, 151936, eps=1e-6, qkv_bias=True, tied=True),
    "qwen3-0.6b": LlamaShape(28, 1024, 3072, 16, 8, 128, 151936, eps=1e-6, qk_norm=True, tied=True),
    "tiny": LlamaShape(2, 64, 96, 4, 2, 16, 160, qk_norm=True),
}
