"""A trained language model on disk: a GGUF file, or a folder with config.json and safetensors files.

Files are read, never executed: this module, ``Checkpoint`` and ``GGUF`` parse headers, and nothing is unpickled.

    model = load_model("SmolLM2-135M")              # reads headers only
    embed = model.read("embed")                     # float32, (vocabulary, hidden)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import DTypeError, GraphError, ModelFileError, UnsupportedModelError
from interlace.models.config_fields import (
    SILU,
    check_fields,
    check_gguf_fields,
    check_rope,
    fill_defaults,
    find_model_type,
)
from interlace.models.families import FAMILIES
from interlace.models.folder import open_checkpoints, read_json
from interlace.models.generation_settings import list_ignored
from interlace.models.gguf import GGUF
from interlace.models.llama import LlamaShape
from interlace.models.notices import warn_missing
from interlace.models.rope import check_finite, compute_frequencies, find_rope_type
from interlace.models.special_tokens import list_missing
from interlace.models.stops import read_stop_tokens
from interlace.models.weight_names import (
    FOLDER_KEYS,
    FOLDER_NAMES,
    GGUF_KEYS,
    GGUF_NAMES,
    SettingNumbers,
    add_base_prefix,
    check_head_norms,
    check_parts,
    name_weights,
    read_shape,
)
from interlace.models.windows import find_window


@dataclass(frozen=True)
class PretrainedModel:
    """A model on disk whose weights have not been read.

    Attributes:
        path: the file or folder.
        shape: shape of the model.
        inv_freq: RoPE frequencies in radians per position, (head_dim / 2,).
        scaling: factor on the cosines and sines of RoPE.
        window: sliding window of attention in positions, None for full attention.
        max_positions: context length that the model was made for.
        stop_token_ids: ids of the tokens that end a text.
        notices: a line for each missing setting that changes tokens.
        names: names of all weights, in the order of a forward pass.
        gguf: the GGUF file, None for a folder.
    """

    path: Path
    shape: LlamaShape
    inv_freq: NDArray[np.float32]
    scaling: float
    window: int | None
    max_positions: int
    stop_token_ids: tuple[int, ...]
    notices: tuple[str, ...]
    names: tuple[str, ...]
    gguf: GGUF | None
    _read: Callable[[str], NDArray[np.float32]]

    def read(self, name: str) -> NDArray[np.float32]:
        """Read one weight, by the name that a decode step has for it.

        Raises:
            ModelFileError: the weight cannot be read, or holds infinities or NaNs.
        """
        try:
            return self._read(name)
        except (GraphError, DTypeError) as error:
            raise ModelFileError(str(error)) from None


def load_model(path: str | Path) -> PretrainedModel:
    """Load the model in a GGUF file or a folder.

    Raises:
        ModelFileError: there is no model, or it is damaged, truncated, or lacks weights.
        UnsupportedModelError: the model is not of the Llama family, or has a feature that a decode step does not
            support.

    Warns:
        MissingSettingWarning: the model lacks a setting that changes tokens.
    """
    model = load_model_quietly(path)
    warn_missing(model.notices, stacklevel=1)
    return model


def load_model_quietly(path: str | Path, applied: Collection[str] = ()) -> PretrainedModel:
    """Load a model as ``load_model`` does, but without warnings: the caller reports ``notices``.

    Args:
        applied: settings of the generation config that the caller applies; no notice names them.
    """
    path = Path(path)
    try:
        folder = path.is_dir()
    except OSError as error:  # a name that the system rejects
        raise ModelFileError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if folder:
        return _load_folder(path, applied)
    if path.suffix.lower() in (".safetensors", ".json"):
        raise ModelFileError(f"{str(path)!r} is part of a model; name the folder that has config.json next to it")
    return _load_gguf(GGUF.open(path))


# ---------------------------------------------------------------- folders


def _load_folder(path: Path, applied: Collection[str]) -> PretrainedModel:
    settings, where = read_json(path / "config.json"), f"config.json of {str(path)!r}"
    kind = find_model_type(settings)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UnsupportedModelError(
            f"{str(path)!r} has a model of type {kind!r}; a decoder takes {', '.join(FAMILIES)}"
        )
    config = fill_defaults({**settings, "model_type": kind})
    activation = config["hidden_act"]
    if config.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{str(path)!r} has quantised weights (quantization_config); take the plain model")
    if activation not in SILU:
        raise UnsupportedModelError(f"{str(path)!r} has hidden_act {activation!r}; a decoder has 'silu' alone")
    check_fields(config, where)
    if (path / "adapter_config.json").is_file():
        raise UnsupportedModelError(
            f"{str(path)!r} has an adapter next to its weights (adapter_config.json); merge the two first, or take "
            "that file away"
        )
    holders = open_checkpoints(path)
    disk_names = add_base_prefix(holders)
    extents = {
        name: holders[own].tensors[own].shape
        for name, own in disk_names.items()
        if not name.endswith("rotary_emb.inv_freq")
    }
    tied = config["tie_word_embeddings"]
    if type(tied) is not bool:
        raise ModelFileError(f"{where} has tie_word_embeddings {tied!r}; it is true or false")
    again = "lm_head.weight" if tied and extents.pop("lm_head.weight", ()) else ""
    numbers = SettingNumbers(where, config)
    names = name_weights(str(path), extents, numbers.read_count("num_hidden_layers"), FOLDER_NAMES)
    if not tied and "head" not in names:
        raise ModelFileError(f"{str(path)!r} lacks weights: lm_head.weight, as tie_word_embeddings is not true")
    shape = read_shape(str(path), numbers, names, extents, FOLDER_KEYS)
    check_parts(kind, shape, config.get("attention_bias"), where)
    stated = config.get("vocab_size")
    if stated is not None and stated != shape.vocabulary:
        raise ModelFileError(
            f"{where} has vocab_size {stated!r}, and the embeddings have {shape.vocabulary} rows; make the two agree"
        )
    inv_freq, scaling = _read_rope(config, shape.head_dim, where)
    generation = _read_generation_config(path)
    stops = read_stop_tokens(config, generation, where)
    ignored = list_ignored(config if generation is None else generation, repr(str(path)), applied if generation else ())

    def read(name: str) -> NDArray[np.float32]:
        own = disk_names[names[name]]
        values = holders[own].read_tensor(own)
        if name == "embed" and again and not np.array_equal(values, holders[again].read_tensor(again)):
            raise UnsupportedModelError(
                f"{where} ties the head to the embeddings (tie_word_embeddings), and {again} has other values; set "
                "tie_word_embeddings to false, or take that tensor out"
            )
        return values

    return PretrainedModel(
        path=path,
        shape=shape,
        inv_freq=inv_freq,
        scaling=scaling,
        window=find_window(config, shape.layers, where),
        max_positions=numbers.read_count("max_position_embeddings"),
        stop_token_ids=stops.ids,
        notices=(*_list_untyped(config, where), *stops.notices, *ignored),
        names=tuple(names),
        gguf=None,
        _read=read,
    )


def _read_rope(config: Mapping[str, Any], head_dim: int, where: str) -> tuple[NDArray[np.float32], float]:
    """Return the frequencies and scale of a config, under the newer or older name of their parameters."""
    rope = _find_rope(config)
    if not isinstance(rope, Mapping):
        raise ModelFileError(f"{where} has no parameters of RoPE but {rope!r}")
    original = {"original_max_position_embeddings": config.get("max_position_embeddings")}
    inv_freq, scaling = compute_frequencies(
        head_dim, rope.get("rope_theta", config["rope_theta"]), {**original, **rope}, where
    )
    check_rope(rope, where)
    return inv_freq, scaling


def _find_rope(config: Mapping[str, Any]) -> Any:
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def _list_untyped(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return a line for a RoPE factor without a type, which ``transformers`` ignores."""
    rope = _find_rope(config)
    factor = rope.get("factor")
    if factor in (None, 1) or find_rope_type(rope) is not None:
        return ()
    return (f"{where} has a factor of RoPE {factor!r} and no rope_type, so it scales nothing, as in transformers",)


def _read_generation_config(path: Path) -> Mapping[str, Any] | None:
    """Return the fields of generation_config.json, None if there is no such file."""
    file = path / "generation_config.json"
    return read_json(file) if file.is_file() else None


# ---------------------------------------------------------------- GGUF


def _load_gguf(file: GGUF) -> PretrainedModel:
    path, data = str(file.path), file.metadata
    kind = data.get("general.architecture")
    taken = [name for name, family in FAMILIES.items() if family.has_gguf]
    if not isinstance(kind, str) or kind not in taken:
        raise UnsupportedModelError(f"{path!r} has a model of type {kind!r}; a decoder takes {', '.join(taken)}")
    if data.get(f"{kind}.expert_count"):
        raise UnsupportedModelError(f"{path!r} has a mixture of experts, which a decoder does not know")
    parts = data.get("split.count")
    if type(parts) is int and parts > 1:
        raise UnsupportedModelError(
            f"{path!r} is one of {parts} parts of a model; join them first: llama-gguf-split --merge FIRST WHOLE.gguf"
        )
    check_gguf_fields(data, kind, repr(path))
    extents = {name: tensor.shape for name, tensor in file.tensors.items()}
    factors = extents.pop("rope_freqs.weight", None)
    numbers = SettingNumbers(repr(path), data, f"{kind}.")
    names = name_weights(path, extents, numbers.read_count("block_count"), GGUF_NAMES)
    shape = read_shape(path, numbers, names, extents, GGUF_KEYS)
    check_head_norms(kind, shape, repr(path))
    head_dim = shape.head_dim
    if numbers.read_count("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path!r} has keys and values of different widths; a decoder has one for both")
    turned = numbers.read_count("rope.dimension_count", head_dim)
    if turned != head_dim:
        raise UnsupportedModelError(f"{path!r} turns {turned} of {head_dim} elements of a head; a decoder turns all")
    # As llama.cpp reads them: the older name as well, and linear scaling for a factor without a type.
    factor = data.get(f"{kind}.rope.scaling.factor", data.get(f"{kind}.rope.scale_linear", 0.0)) or 1.0
    scaling = {"rope_type": data.get(f"{kind}.rope.scaling.type", "linear"), "factor": factor}
    inv_freq, attention = compute_frequencies(
        head_dim, data.get(f"{kind}.rope.freq_base", 10000.0), scaling, repr(path)
    )
    if factors is not None:
        if factors != inv_freq.shape:
            raise ModelFileError(f"{path!r} has {factors} factors of RoPE, and frequencies {inv_freq.shape}")
        with np.errstate(all="ignore"):
            inv_freq = check_finite(inv_freq / file.read("rope_freqs.weight"), repr(path))

    def read(name: str) -> NDArray[np.float32]:
        values = file.read(names[name])
        part = name.rpartition(".")[2].removesuffix("_bias")
        if FAMILIES[kind].has_permuted_heads and part in ("q", "k"):
            return unpermute_rope(values, shape.heads if part == "q" else shape.kv_heads)
        return values

    stops = read_stop_tokens(data, None, repr(path))
    window = numbers.read_count("attention.sliding_window") if data.get(f"{kind}.attention.sliding_window") else None
    return PretrainedModel(
        path=file.path,
        shape=shape,
        inv_freq=inv_freq,
        scaling=attention,
        window=window,
        max_positions=numbers.read_count("context_length"),
        stop_token_ids=stops.ids,
        notices=(*list_missing(data, repr(path)), *stops.notices),
        names=tuple(names),
        gguf=file,
        _read=read,
    )


def unpermute_rope(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder rows of q or k so that element i of a head is rotated with i + d/2.

    llama.cpp stores those of the Llama architecture with pairs i and i + 1 adjacent (``permute`` of
    convert_hf_to_gguf.py): a head of width 4 has its rows in the order 0, 2, 1, 3.

    Args:
        values: (heads * d, hidden), or a bias (heads * d,).
        heads: number of heads.
    """
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
