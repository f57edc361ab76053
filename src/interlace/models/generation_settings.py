"""Settings of a generation config: those that a decoder does not apply, and defaults of sampling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from interlace.models.folder import read_json

#: Settings that are defaults of requests to a server, as in vLLM; their names are those of sampling parameters.
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Values without effect, by the name of the setting. Sampling settings (``do_sample``, ``temperature``, ``top_k``, ...)
#: are absent: arguments of a decoder's ``generate`` choose them. Source: ``GenerationConfig`` of ``transformers``.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale", "num_beams"), (1,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "penalty_alpha"), (0,)),
    **dict.fromkeys(("min_length", "min_new_tokens", "token_healing"), (0,)),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("stop_strings", "force_words_ids", "constraints", "dola_layers", "watermarking_config"), ()),
}
GENERATION_FIELDS = tuple(_NEUTRAL)
_ABSENT: tuple[Any, ...] = (None, "", [], {})


def list_ignored(generation: Mapping[str, Any] | None, where: str, applied: Collection[str] = ()) -> tuple[str, ...]:
    """Return a line naming the settings that ``transformers`` applies and a decoder does not, if there are any.

    Args:
        applied: settings that the caller applies.
    """
    stated = {name: (generation or {}).get(name) for name in GENERATION_FIELDS if name not in applied}
    ignored = [
        f"{name} {value!r}" for name, value in stated.items() if value not in _ABSENT and value not in _NEUTRAL[name]
    ]
    if not ignored:
        return ()
    return (f"the generation config of {where} has {', '.join(ignored)}, which a decoder does not follow",)


def read_sampling_defaults(path: Path) -> dict[str, Any]:
    """Return the sampling parameters that the generation config of a folder sets; none for a GGUF file.

    Raises:
        ModelFileError: the file is damaged.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        return {}
    settings = read_json(file)
    return {name: settings[name] for name in SAMPLING_DEFAULTS if settings.get(name) is not None}
