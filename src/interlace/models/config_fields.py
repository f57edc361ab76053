"""Known fields of config.json and of a GGUF file's metadata: fields that a decoder reads, and fields without effect.

Any other field may change the arithmetic (``logit_scale``, ``attention_multiplier``, ``partial_rotary_factor`` and so
on), so a model that has one is rejected with an error that names the field.

Sources: the configs of ``transformers`` and its ``PreTrainedConfig``; ``LLM_KV_NAMES`` in llama-arch.cpp of
https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from interlace.core.errors import UnsupportedModelError
from interlace.models.families import FAMILIES

#: Names of the function x * sigmoid(x).
SILU = ("silu", "swish")
#: Defaults of all families, beneath their own.
_SHARED_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}

_READ = frozenset(
    (
        *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
        *("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "hidden_act", "tie_word_embeddings"),
        *("rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "use_sliding_window", "layer_types"),
        *("max_window_layers", "eos_token_id", "quantization_config", "attention_bias", "vocab_size"),
    )
)
#: Fields that change the arithmetic unless they have this value.
_NEUTRAL: Mapping[str, Any] = {
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "logit_scale", "logits_scaling"), 1),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier"), 1),
    **dict.fromkeys(("mlp_bias", "rope_interleaved", "use_mrope", "alibi", "use_parallel_residual"), False),
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"), False),
    "is_causal": True,
    "activation": "swiglu",
}
_ABSENT: tuple[Any, ...] = (None, "", [], {})  # treated as no value
#: Fields about training, generation, the library or the tools that save models; they do not affect a decode step.
_HARMLESS = frozenset(
    (
        *("architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "name_or_path", "model_name"),
        *("attn_implementation", "experts_implementation", "tokenizer_class", "license", "transformers.js_config"),
        *("is_llama_config", "is_decoder", "base_model", "trust_remote_code", "cross_attention_hidden_size"),
        *("chunk_size_feed_forward", "use_cache", "pretraining_tp", "return_dict", "torchscript", "use_bfloat16"),
        *("tf_legacy_loss", "output_attentions", "output_hidden_states", "output_past", "use_flash_attn"),
        *("max_sequence_length", "max_seq_len", "max_seq_length", "model_max_length", "seq_length"),
        *("initializer_range", "initializer_cutoff_factor", "gradient_checkpointing", "neftune_noise_alpha"),
        *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout", "embd_pdrop"),
        *("hidden_dropout", "hidden_dropout_prob", "mlp_dropout", "resid_pdrop", "embedding_dropout"),
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "is_assistant", "disable_compile", "low_memory"),
        *("bad_words_ids", "begin_suppress_tokens", "cache_config", "cache_implementation", "compile_config"),
        *("constraints", "diversity_penalty", "do_sample", "dola_layers", "early_stopping", "min_p", "penalty_alpha"),
        *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "num_beams"),
        *("exponential_decay_length_penalty", "force_words_ids", "guidance_scale", "length_penalty", "max_length"),
        *("max_new_tokens", "max_time", "min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beam_groups"),
        *("num_return_sequences", "output_logits", "output_scores", "remove_invalid_values", "renormalize_logits"),
        *("repetition_penalty", "return_dict_in_generate", "sequence_bias", "stop_strings", "suppress_tokens"),
        *("temperature", "token_healing", "top_h", "top_k", "top_p", "typical_p", "watermarking_config"),
    )
)
_HARMLESS_ENDS = ("_token_id",)
_HARMLESS_BEGINNINGS = ("_", "unsloth_")
#: Parameters of RoPE that ``rope.compute_frequencies`` reads.
_ROPE = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    )
)

_GGUF_READ = frozenset(
    (
        *("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
        *("attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window"),
        *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base", "rope.scale_linear"),
        *("rope.scaling.type", "rope.scaling.factor", "expert_count", "vocab_size"),
    )
)
_GGUF_NEUTRAL: Mapping[str, Any] = {
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), 1.0),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), 1.0),
    "attention.causal": True,
    "hidden_activation": "silu",
}
_GGUF_HARMLESS = frozenset(
    (
        *("tensor_data_layout", "pooling_type", "expert_used_count", "attention.layer_norm_epsilon"),
        *("rope.scaling.original_context_length", "rope.scaling.finetuned"),
        *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    )
)


def fill_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config with defaults for the absent ones; null stays null."""
    family = FAMILIES.get(str(config.get("model_type")))
    return {**_SHARED_DEFAULTS, **(family.defaults if family else {}), **config}


def find_model_type(config: Mapping[str, Any]) -> object:
    """Return the model type that ``AutoModel`` selects: Ministral for a config of Mistral that has layer_types."""
    kind = config.get("model_type")
    return "ministral" if kind == "mistral" and "layer_types" in config else kind


def list_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a ``transformers`` config object, or of a similar object."""
    convert = getattr(config, "to_dict", None)
    return dict(convert() if callable(convert) else vars(config))


def check_fields(config: Mapping[str, Any], where: str) -> None:
    """Reject config fields that a decode step would ignore; null and empty values count as absent.

    Raises:
        UnsupportedModelError: a field is present; the message names the first one.
    """
    for name, value in config.items():
        is_known = name in _READ or name in _HARMLESS or name.endswith(_HARMLESS_ENDS)
        if is_known or name.startswith(_HARMLESS_BEGINNINGS) or value in _ABSENT:
            continue
        if name not in _NEUTRAL or value != _NEUTRAL[name]:
            raise _build_error(where, name, value)


def check_rope(rope: Mapping[str, Any], where: str, is_computed: bool = False) -> None:
    """Reject RoPE parameters that ``rope.compute_frequencies`` does not apply.

    Args:
        is_computed: True if a model has already computed its frequencies from all parameters.

    Raises:
        UnsupportedModelError: such a parameter is present; the message names the first one.
    """
    for name, value in rope.items():
        is_neutral = name == "partial_rotary_factor" and value == 1
        is_read = name in _ROPE or (is_computed and name != "partial_rotary_factor")
        if not (is_read or is_neutral or value is None):
            raise _build_error(where, f"{name} of RoPE", value)


def check_gguf_fields(metadata: Mapping[str, Any], kind: str, where: str) -> None:
    """Reject numbers of an architecture in a GGUF file that a decode step would ignore.

    The values 0 and false count as absent, except for ``attention.causal``.

    Raises:
        UnsupportedModelError: such a number is present; the message names the first one.
    """
    for full, value in metadata.items():
        architecture, _, name = full.partition(".")
        if architecture != kind or name in _GGUF_READ or name in _GGUF_HARMLESS:
            continue
        is_absent = value in (0, "", []) and name != "attention.causal"
        if not is_absent and (name not in _GGUF_NEUTRAL or value != _GGUF_NEUTRAL[name]):
            raise _build_error(where, full, value)


def _build_error(where: str, name: str, value: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{where} has {name} {reprlib.repr(value)}, which a decoder would drop; remove it if the model computes the "
        "same without it"
    )
