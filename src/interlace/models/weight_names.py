"""Names and extents of a model's weights on disk, and the model shape that its settings define."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from interlace.core.errors import ModelFileError, UnsupportedModelError
from interlace.models.families import FAMILIES
from interlace.models.llama import LlamaShape
from interlace.models.weights import list_weights

#: Names in weight files, without ".weight" or ".bias", by the names of a decode step.
_LAYER_OF_FOLDERS = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_LAYER_OF_GGUF = {
    "input_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
FOLDER_NAMES = (
    *({"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}, "model.layers", _LAYER_OF_FOLDERS),
)
GGUF_NAMES = ({"embed": "token_embd", "norm": "output_norm", "head": "output"}, "blk", _LAYER_OF_GGUF)
_MAX_LISTED = 4  # names listed in an error message

#: Hidden width, heads, head width, inner FFN width, key heads, epsilon of RMSNorm.
FOLDER_KEYS = (
    *("hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "num_key_value_heads", "rms_norm_eps"),
)
GGUF_KEYS = (
    *("embedding_length", "attention.head_count", "attention.key_length", "feed_forward_length"),
    *("attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
)
Names = tuple[Mapping[str, str], str, Mapping[str, str]]
#: Prefixes of names in checkpoints of a base model, which lack "model." in front.
_BASE = ("embed_tokens.", "layers.", "norm.")


def add_base_prefix(names: Iterable[str]) -> dict[str, str]:
    """Return the stored name of each tensor by its name in a causal model, as ``transformers`` loads a base model.

    For example ``layers.0.mlp.up_proj.weight`` is found under ``model.layers.0.mlp.up_proj.weight``, unless a tensor of
    that name is stored too.
    """
    present = {*names}
    full_names = {name: f"model.{name}" for name in present if name.startswith(_BASE)}
    return {(name if full_names.get(name, name) in present else full_names[name]): name for name in present}


@dataclass(frozen=True)
class SettingNumbers:
    """Reader of numbers in a settings file, whose values are unchecked."""

    where: str
    data: Mapping[str, Any]
    prefix: str = ""

    def read_count(self, name: str, default: int | None = None) -> int:
        value = self.data.get(self.prefix + name)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ModelFileError(f"{self.where} has {self.prefix}{name} {value!r}; it must be a positive number")
        return value

    def read_real(self, name: str) -> float:
        value = self.data.get(self.prefix + name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ModelFileError(f"{self.where} has {self.prefix}{name} {value!r}; it must be a small positive number")
        return float(value)


def name_weights(where: str, extents: Mapping[str, object], layers: int, names: Names) -> dict[str, str]:
    """Return the name in the file of each weight of a decode step; every tensor of the file must be one.

    Raises:
        ModelFileError: tensors are missing.
        UnsupportedModelError: the file has tensors that a decode step does not use.
    """
    if layers > len(extents):
        raise ModelFileError(f"{where!r} says {layers} layers and has {len(extents)} tensors")
    ends, prefix, inner = names
    found = {"embed": f"{ends['embed']}.weight"}
    for l in range(layers):
        found |= {f"layers.{l}.{part}": f"{prefix}.{l}.{theirs}.weight" for part, theirs in inner.items()}
        found |= {f"layers.{l}.{part}_bias": f"{prefix}.{l}.{inner[part]}.bias" for part in ("q", "k", "v")}
    found |= {name: f"{ends[name]}.weight" for name in ("norm", "head")}
    present = {ours: theirs for ours, theirs in found.items() if theirs in extents}
    lacking = [theirs for ours, theirs in found.items() if ours not in present and not _is_optional(ours)]
    if lacking:
        more = f" and {len(lacking) - _MAX_LISTED} more" if len(lacking) > _MAX_LISTED else ""
        raise ModelFileError(f"{where!r} lacks weights: {', '.join(lacking[:_MAX_LISTED])}{more}")
    unknown = sorted(extents.keys() - {*present.values()})
    if unknown:
        more = f" and {len(unknown) - _MAX_LISTED} more" if len(unknown) > _MAX_LISTED else ""
        raise UnsupportedModelError(
            f"{where!r} has weights that a decoder has no place for: {', '.join(unknown[:_MAX_LISTED])}{more}"
        )
    return present


def check_parts(kind: str, shape: LlamaShape, stated_bias: object, where: str) -> None:
    """Reject biases and head norms that models of a type lack, and their absence in types that have them.

    ``transformers`` builds the parts of a type whatever a checkpoint holds: it drops surplus ones, and initialises
    missing ones with other values.

    Args:
        kind: type of the model.
        shape: shape read from the weights.
        stated_bias: ``attention_bias``, for the types that read it.
        where: source of the settings, for error messages.

    Raises:
        ModelFileError: parts that disagree with the config or are missing.
        UnsupportedModelError: parts that models of the type lack.
    """
    has_bias = FAMILIES[kind].has_bias
    if has_bias is None and bool(stated_bias) != shape.qkv_bias:
        raise ModelFileError(
            f"{where} has attention_bias {stated_bias!r}, and the weights have "
            f"{'biases' if shape.qkv_bias else 'no biases'}; make the two agree"
        )
    if has_bias is not None:
        _check_part("biases of queries, keys and values", shape.qkv_bias, has_bias, kind, where)
    check_head_norms(kind, shape, where)


def check_head_norms(kind: str, shape: LlamaShape, where: str) -> None:
    """Reject head norms in a type that lacks them, and their absence in one that has them, as ``check_parts`` does."""
    _check_part("norms of heads (q_norm, k_norm)", shape.qk_norm, FAMILIES[kind].has_head_norms, kind, where)


def _check_part(what: str, present: bool, right: bool, kind: object, where: str) -> None:
    if present and not right:
        raise UnsupportedModelError(
            f"{where} has the type {kind!r}, and the weights have {what}, which that type lacks; correct the type"
        )
    if right and not present:
        raise ModelFileError(f"{where} has the type {kind!r}, and the weights lack {what}; correct one of the two")


def _is_optional(name: str) -> bool:
    return name == "head" or name.endswith(("_bias", ".q_norm", ".k_norm"))


def read_shape(
    where: str,
    numbers: SettingNumbers,
    names: Mapping[str, str],
    extents: Mapping[str, tuple[int, ...]],
    keys: tuple[str, ...],
) -> LlamaShape:
    """Read the model shape from the settings and check it against the extents of all weights."""
    width, queries, each, inner, pairs, eps = keys
    hidden, heads = numbers.read_count(width), numbers.read_count(queries)
    kv_heads, head_dim = numbers.read_count(pairs, heads), numbers.read_count(each, hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelFileError(
            f"{numbers.where} has {heads} heads for {kv_heads} of keys, heads of width {head_dim}; each head of keys "
            "serves as many, and a width is even"
        )
    shape = LlamaShape(
        layers=sum(name.endswith(".input_norm") for name in names),
        hidden=hidden,
        ffn=numbers.read_count(inner),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=extents[names["embed"]][0],
        eps=numbers.read_real(eps),
        qkv_bias="layers.0.q_bias" in names,
        qk_norm="layers.0.q_norm" in names,
        tied="head" not in names,
    )
    right = list_weights(shape)
    uneven = sorted(right.keys() ^ names.keys())
    if uneven:
        raise ModelFileError(f"{where!r} has {', '.join(uneven[:_MAX_LISTED])} in some layers and not in others")
    for name, theirs in names.items():
        if extents[theirs] != right[name]:
            raise ModelFileError(
                f"{where!r} has {theirs} of shape {extents[theirs]}; by its other settings it is {right[name]}"
            )
    return shape
