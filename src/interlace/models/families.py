"""Model families that a decoder runs, one row each: what their configs, weights and files have.

A family is a ``model_type`` of ``transformers`` whose forward pass is Llama's but for the parts named here. One more
row of ``FAMILIES`` adds one; ``LlamaShape`` has the parts themselves.

Source: the configs and models of ``transformers``; llama-arch.cpp of https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class WindowRule(Enum):
    """Layers to which ``sliding_window`` of a config applies."""

    NONE = "none"
    ALL = "all layers, unless it is null"
    LISTED = "layers of sliding_attention in layer_types, by default all"
    OPTIONAL = "as LISTED if use_sliding_window is true, by default the layers from max_window_layers on"


@dataclass(frozen=True)
class ModelFamily:
    """Parts of a family's models, and fields of its configs.

    Attributes:
        defaults: defaults of the ``transformers`` config for fields that config.json omits.
        window: layers with a sliding window.
        has_gguf: True if GGUF files have an architecture of this name.
        has_permuted_heads: True if GGUF files store rows of q and k in interleaved order.
        has_bias: True if q, k and v have biases; None if ``attention_bias`` of the config states it.
        has_head_norms: True if heads of q and k are normalised.
        tokenizer_class: tokenizer class that ``transformers`` takes if the folder names none.
        replaces_tokenizer_class: True if it takes that class whatever the folder names.
        has_default_tokens: False if it adds no special tokens of a tokenizer class.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    window: WindowRule = WindowRule.NONE
    has_gguf: bool = False
    has_permuted_heads: bool = False
    has_bias: bool | None = False
    has_head_norms: bool = False
    tokenizer_class: str | None = None
    replaces_tokenizer_class: bool = False
    has_default_tokens: bool = True


_QWEN: Mapping[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_MISTRAL: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
#: Families by ``model_type``. Mistral models have the architecture llama in GGUF files.
FAMILIES: dict[str, ModelFamily] = {
    "llama": ModelFamily(
        {"max_position_embeddings": 2048, "attention_bias": False},
        has_gguf=True,
        has_permuted_heads=True,
        has_bias=None,
    ),
    "mistral": ModelFamily(_MISTRAL, WindowRule.ALL, has_default_tokens=False),
    "qwen2": ModelFamily(
        _QWEN,
        WindowRule.OPTIONAL,
        has_gguf=True,
        has_bias=True,
        tokenizer_class="Qwen2Tokenizer",
        replaces_tokenizer_class=True,
    ),
    "qwen3": ModelFamily(
        {**_QWEN, "head_dim": 128, "attention_bias": False},
        WindowRule.OPTIONAL,
        has_gguf=True,
        has_bias=None,
        has_head_norms=True,
        tokenizer_class="Qwen2Tokenizer",
    ),
    "ministral": ModelFamily(_MISTRAL, WindowRule.LISTED),
}
