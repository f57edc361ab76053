"""Stop-token ids, read in one place for GGUF files, folders and ``transformers`` models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlace.core.errors import UnsupportedModelError
from interlace.models.special_tokens import find_end_ids


@dataclass(frozen=True)
class StopTokens:
    """Tokens that end a text.

    Attributes:
        ids: ids of the tokens.
        notices: lines about behaviour that may surprise a user.
    """

    ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


def read_stop_tokens(settings: Mapping[str, Any], generation: Mapping[str, Any] | None, where: str) -> StopTokens:
    """Return the ids of the tokens that end a text.

    ``transformers`` reads them from the generation config only, and derives one from config.json if there is none. With
    a generation config whose ids are absent or null, no token ends a text. A GGUF file has neither config; see
    ``special_tokens``.

    Args:
        settings: metadata of a GGUF file, or fields of a config.
        generation: fields of the generation config, None if there is none.
        where: source of the settings, for error messages.

    Raises:
        UnsupportedModelError: an id is not an integer.
        ModelFileError: a GGUF file names a token by a value that is not an integer.
    """
    if "general.architecture" in settings:
        return StopTokens(find_end_ids(settings, where))
    config_ids = settings.get("eos_token_id")
    ids = _check_ids(config_ids if generation is None else generation.get("eos_token_id"), where)
    if ids:
        return StopTokens(ids)
    if _check_ids(config_ids, where):
        reason = f"{where} names eos_token_id {config_ids!r} and its generation config none, so, as in transformers,"
    elif any("eos_token_id" in fields for fields in (settings, generation or {})):
        return StopTokens(())  # null is deliberate
    else:
        reason = f"{where} and its generation config name no eos_token_id, so"
    return StopTokens((), (f"{reason} no token ends a text; pass stop_token_ids= to end it",))


def _check_ids(value: object, where: str) -> tuple[int, ...]:
    if value is None:
        return ()
    values: list[Any] = [*value] if isinstance(value, (list, tuple)) else [value]
    if not all(type(id) is int for id in values):
        raise UnsupportedModelError(
            f"{where}: eos_token_id is {value!r}; it is an id, or a list of ids, that ends a text"
        )
    return tuple(dict.fromkeys(values))
