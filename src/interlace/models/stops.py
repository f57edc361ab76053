"""The ids that end a text, read in one place for GGUF files, folders and models of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlace.core.errors import UnsupportedModelError
from interlace.models.special_tokens import find_end_ids


@dataclass(frozen=True)
class StopTokens:
    """What ends a text.

    Attributes:
        ids: of the tokens.
        notices: a line for what a user may expect otherwise.
    """

    ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


def read_stop_tokens(settings: Mapping[str, Any], generation: Mapping[str, Any] | None, where: str) -> StopTokens:
    """Return the ids that end a text.

    ``transformers`` takes them from the generation config alone, and makes one from config.json where there is none. A
    generation config without ids, or with null, therefore lets every text run on. A GGUF file has neither config; see
    ``special_tokens``.

    Args:
        settings: the metadata of a GGUF file, or the fields of a config.
        generation: the fields of a generation config, None where there is none.
        where: the settings come from, for messages.

    Raises:
        UnsupportedModelError: ids of another kind than numbers.
        ModelFileError: a GGUF file names a token by something else than a number.
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
        return StopTokens(())  # null on purpose
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
