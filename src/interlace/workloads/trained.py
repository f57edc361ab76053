"""A trained language model on disk: a GGUF file, or a folder with config.json and safetensors files.

Files are read, never executed: headers are parsed here and by ``Checkpoint`` and ``GGUF``, and nothing is unpickled.

    model = open_model("SmolLM2-135M")              # headers alone
    embed = model.read("embed")                     # float32, (vocabulary, hidden)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import DTypeError, GraphError, ModelFileError, UnsupportedModelError
from interlace.workloads.folder import checkpoints, json_object
from interlace.workloads.gguf import GGUF
from interlace.workloads.llama import LlamaShape
from interlace.workloads.rope import finite, frequencies
from interlace.workloads.weights import wanted

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
#: Names in files of weights, without ".weight" or ".bias", by the names that a decode step has.
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
_FOLDERS = ({"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}, "model.layers", _LAYER_OF_FOLDERS)
_GGUF = ({"embed": "token_embd", "norm": "output_norm", "head": "output"}, "blk", _LAYER_OF_GGUF)
_SHOWN = 4  # names in a message
_WINDOW = 4096  # where a config does not say, as transformers has it


@dataclass(frozen=True)
class Trained:
    """A model whose weights have not been read.

    Attributes:
        path: the file or folder.
        shape: of the model.
        inv_freq: (head_dim / 2,) radians by which a position turns.
        scaling: of the cosines and sines of these.
        window: positions that attention looks back over, None for all.
        positions: that the model was made for.
        stop: ids that end a text.
        names: of all weights, in the order of a pass.
        gguf: the file, where it is one.
    """

    path: Path
    shape: LlamaShape
    inv_freq: NDArray[np.float32]
    scaling: float
    window: int | None
    positions: int
    stop: tuple[int, ...]
    names: tuple[str, ...]
    gguf: GGUF | None
    _read: Callable[[str], NDArray[np.float32]]

    def read(self, name: str) -> NDArray[np.float32]:
        """One of the weights, by the name that a decode step has for it.

        Raises:
            ModelFileError: it cannot be read, or holds infinities or NaNs.
        """
        try:
            return self._read(name)
        except (GraphError, DTypeError) as error:
            raise ModelFileError(str(error)) from None


def open_model(path: str | Path) -> Trained:
    """The model in a GGUF file or a folder.

    Raises:
        ModelFileError: there is none, or it is damaged, truncated, or lacks weights.
        UnsupportedModelError: it is not of the Llama family, or has something that a decode step would get wrong.
    """
    path = Path(path)
    try:
        folder = path.is_dir()
    except OSError as error:  # a name that no system has
        raise ModelFileError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if folder:
        return _folder(path)
    if path.suffix.lower() in (".safetensors", ".json"):
        raise ModelFileError(f"{str(path)!r} is part of a model; name the folder that has config.json beside it")
    return _file(GGUF.open(path))


# ---------------------------------------------------------------- folders


def _folder(path: Path) -> Trained:
    config = json_object(path / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILY:
        raise UnsupportedModelError(f"{str(path)!r} has a model of type {kind!r}; a decoder takes {', '.join(FAMILY)}")
    if config.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{str(path)!r} has quantised weights (quantization_config); take the plain model")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"{str(path)!r} has hidden_act {activation!r}; a decoder has 'silu' alone")
    if (path / "adapter_config.json").is_file():
        raise UnsupportedModelError(
            f"{str(path)!r} has an adapter beside its weights (adapter_config.json); merge the two first, or take that "
            "file away"
        )
    holders = checkpoints(path)
    extents = {
        name: holder.tensors[name].shape
        for name, holder in holders.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    tied = config.get("tie_word_embeddings", False)
    if type(tied) is not bool:
        raise ModelFileError(f"config.json of {str(path)!r} has tie_word_embeddings {tied!r}; it is true or false")
    again = "lm_head.weight" if tied and extents.pop("lm_head.weight", ()) else ""
    numbers = _Numbers(f"config.json of {str(path)!r}", config)
    names = _named(str(path), extents, numbers.count("num_hidden_layers"), _FOLDERS)
    if not tied and "head" not in names:
        raise ModelFileError(f"{str(path)!r} lacks weights: lm_head.weight, as tie_word_embeddings is not true")
    shape = _shape(str(path), numbers, names, extents, _FOLDER_KEYS)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ModelFileError(f"config.json of {str(path)!r} has no parameters of RoPE but {rope!r}")
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    inv_freq, scaling = frequencies(shape.head_dim, base, rope, repr(str(path)))

    def read(name: str) -> NDArray[np.float32]:
        values = holders[names[name]].tensor(names[name])
        if name == "embed" and again and not np.array_equal(values, holders[again].tensor(again)):
            raise UnsupportedModelError(
                f"config.json of {str(path)!r} ties the head to the embeddings (tie_word_embeddings), and {again} has "
                "other values; set tie_word_embeddings to false, or take that tensor out"
            )
        return values

    return Trained(
        path,
        shape,
        inv_freq,
        scaling,
        _window(config, str(path)),
        numbers.count("max_position_embeddings", 2048),
        _ids(_eos(path, config)),
        tuple(names),
        None,
        read,
    )


def _eos(path: Path, config: Mapping[str, Any]) -> object:
    """What ends a text: as generation_config.json says, where that is, else config.json."""
    extra = path / "generation_config.json"
    more = json_object(extra) if extra.is_file() else {}
    return more.get("eos_token_id", config.get("eos_token_id"))


def _ids(value: object) -> tuple[int, ...]:
    several = value if isinstance(value, list) else [value]
    return tuple(id for id in several if type(id) is int)


def _window(config: Mapping[str, Any], where: str) -> int | None:
    """As ``transformers`` reads it: Qwen has a size that counts if its switch is on, Mistral a size alone."""
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ModelFileError(f"config.json of {where} has layer_types {kinds!r}; they are a list of names")
    slides = "sliding_attention" in kinds or config.get("use_sliding_window", config["model_type"] == "mistral")
    if {*kinds} - {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(f"{where} has layers of {sorted({*kinds})}; a decoder has full attention alone")
    window = config.get("sliding_window", _WINDOW) if slides else None
    if window is not None and (type(window) is not int or window < 1):
        raise ModelFileError(f"{where!r} has sliding_window {window!r}; it is a positive number, or null")
    return window


# ---------------------------------------------------------------- GGUF


def _file(file: GGUF) -> Trained:
    path, data = str(file.path), file.metadata
    kind = data.get("general.architecture")
    if kind not in FAMILY:
        raise UnsupportedModelError(f"{path!r} has a model of type {kind!r}; a decoder takes {', '.join(FAMILY)}")
    if data.get(f"{kind}.expert_count"):
        raise UnsupportedModelError(f"{path!r} has a mixture of experts, which a decoder does not know")
    parts = data.get("split.count")
    if type(parts) is int and parts > 1:
        raise UnsupportedModelError(
            f"{path!r} is one of {parts} parts of a model; join them first: llama-gguf-split --merge FIRST WHOLE.gguf"
        )
    changing = [name for name, neutral in _NEUTRAL.items() if data.get(f"{kind}.{name}", neutral) not in (neutral, 0)]
    if changing:
        raise UnsupportedModelError(
            f"{path!r} has {kind}.{changing[0]} {data[f'{kind}.{changing[0]}']!r}, which a decoder would drop"
        )
    extents = {name: tensor.shape for name, tensor in file.tensors.items()}
    factors = extents.pop("rope_freqs.weight", None)
    numbers = _Numbers(repr(path), data, f"{kind}.")
    names = _named(path, extents, numbers.count("block_count"), _GGUF)
    shape = _shape(path, numbers, names, extents, _GGUF_KEYS)
    head_dim = shape.head_dim
    turned = numbers.count("rope.dimension_count", head_dim)
    if turned != head_dim:
        raise UnsupportedModelError(f"{path!r} turns {turned} of {head_dim} elements of a head; a decoder turns all")
    # As llama.cpp reads them: the older name, and linear where no type stands beside a factor.
    factor = data.get(f"{kind}.rope.scaling.factor", data.get(f"{kind}.rope.scale_linear", 0.0)) or 1.0
    scaling = {"rope_type": data.get(f"{kind}.rope.scaling.type", "linear"), "factor": factor}
    inv_freq, attention = frequencies(head_dim, data.get(f"{kind}.rope.freq_base", 10000.0), scaling, repr(path))
    if factors is not None:
        if factors != inv_freq.shape:
            raise ModelFileError(f"{path!r} has {factors} factors of RoPE, and frequencies {inv_freq.shape}")
        with np.errstate(all="ignore"):
            inv_freq = finite(inv_freq / file.read("rope_freqs.weight"), repr(path))

    def read(name: str) -> NDArray[np.float32]:
        values = file.read(names[name])
        part = name.rpartition(".")[2].removesuffix("_bias")
        if kind == "llama" and part in ("q", "k"):
            return halves_apart(values, shape.heads if part == "q" else shape.kv_heads)
        return values

    window = data.get(f"{kind}.attention.sliding_window")
    stop = tuple(
        dict.fromkeys(
            data[f"tokenizer.ggml.{key}"]
            for key in ("eos_token_id", "eot_token_id", "eom_token_id")
            if type(data.get(f"tokenizer.ggml.{key}")) is int
        )
    )
    return Trained(
        file.path,
        shape,
        inv_freq,
        attention,
        window if type(window) is int and window else None,
        numbers.count("context_length", 2048),
        stop,
        tuple(names),
        file,
        read,
    )


def halves_apart(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of q or k in the order in which element i of a head turns with i + d/2.

    llama.cpp has those of the Llama architecture with i and i + 1 side by side (``permute`` of
    convert_hf_to_gguf.py): of a head of width 4 the rows 0, 2, 1, 3.

    Args:
        values: (heads * d, hidden), or a bias (heads * d,).
    """
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


# ---------------------------------------------------------------- both

#: Hidden width, heads, width of a head, inner width of the FFN, heads of keys, what RMSNorm adds.
_FOLDER_KEYS = (
    *("hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "num_key_value_heads", "rms_norm_eps"),
)
_GGUF_KEYS = (
    *("embedding_length", "attention.head_count", "attention.key_length", "feed_forward_length"),
    *("attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
)
#: Numbers of a GGUF file that change the arithmetic, unless they are these (or 0, as if they were not there).
_NEUTRAL = {
    **dict.fromkeys(("attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias"), 0.0),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 0.0),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale", "rope.scaling.attn_factor"), 1.0),
}
_Names = tuple[Mapping[str, str], str, Mapping[str, str]]


@dataclass(frozen=True)
class _Numbers:
    """Numbers of a file of settings, which may hold anything."""

    where: str
    data: Mapping[str, Any]
    prefix: str = ""

    def count(self, name: str, default: int | None = None) -> int:
        value = self.data.get(self.prefix + name)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ModelFileError(f"{self.where} has {self.prefix}{name} {value!r}; it must be a positive number")
        return value

    def real(self, name: str) -> float:
        value = self.data.get(self.prefix + name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ModelFileError(f"{self.where} has {self.prefix}{name} {value!r}; it must be a small positive number")
        return float(value)


def _named(where: str, extents: Mapping[str, object], layers: int, names: _Names) -> dict[str, str]:
    """The name in the file of each weight of a decode step; every tensor of the file must be one.

    Raises:
        ModelFileError: tensors are missing.
        UnsupportedModelError: there are tensors that a decode step has no place for.
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
    lacking = [theirs for ours, theirs in found.items() if ours not in present and not _optional(ours)]
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise ModelFileError(f"{where!r} lacks weights: {', '.join(lacking[:_SHOWN])}{more}")
    unknown = sorted(extents.keys() - {*present.values()})
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise UnsupportedModelError(
            f"{where!r} has weights that a decoder has no place for: {', '.join(unknown[:_SHOWN])}{more}"
        )
    return present


def _optional(name: str) -> bool:
    return name == "head" or name.endswith(("_bias", ".q_norm", ".k_norm"))


def _shape(
    where: str,
    numbers: _Numbers,
    names: Mapping[str, str],
    extents: Mapping[str, tuple[int, ...]],
    keys: tuple[str, ...],
) -> LlamaShape:
    """What the settings say, held against the extents of all weights."""
    width, queries, each, inner, pairs, eps = keys
    hidden, heads = numbers.count(width), numbers.count(queries)
    kv_heads, head_dim = numbers.count(pairs, heads), numbers.count(each, hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelFileError(
            f"{numbers.where} has {heads} heads for {kv_heads} of keys, heads of width {head_dim}; each head of keys "
            "serves as many, and a width is even"
        )
    shape = LlamaShape(
        layers=sum(name.endswith(".input_norm") for name in names),
        hidden=hidden,
        ffn=numbers.count(inner),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=extents[names["embed"]][0],
        eps=numbers.real(eps),
        qkv_bias="layers.0.q_bias" in names,
        qk_norm="layers.0.q_norm" in names,
        tied="head" not in names,
    )
    right = wanted(shape)
    uneven = sorted(right.keys() ^ names.keys())
    if uneven:
        raise ModelFileError(f"{where!r} has {', '.join(uneven[:_SHOWN])} in some layers and not in others")
    for name, theirs in names.items():
        if extents[theirs] != right[name]:
            raise ModelFileError(
                f"{where!r} has {theirs} of shape {extents[theirs]}; by its other settings it is {right[name]}"
            )
    return shape
