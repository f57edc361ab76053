"""Sliding window of attention, as the layers of ``transformers`` apply it.

llama            none: its attention ignores sliding_window and layer_types
mistral          sliding_window in every layer, unless it is null
ministral        sliding_window in layers of "sliding_attention"; without layer_types that is every layer
qwen2, qwen3     sliding_window in layers of "sliding_attention", if use_sliding_window is true; without layer_types
                 those are the layers from max_window_layers on
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.errors import ModelFileError, UnsupportedModelError
from interlace.models.config_fields import fill_defaults
from interlace.models.families import FAMILIES, WindowRule

_FULL, _SLIDING = "full_attention", "sliding_attention"
_OLDER_NAMES = {"attention": _FULL}  # names that transformers maps to newer ones


def find_window(config: Mapping[str, Any], layers: int, where: str) -> int | None:
    """Return the window in positions, None if no layer has one.

    Args:
        config: fields of a config.
        layers: number of layers of the model.
        where: source of the config, for error messages.

    Raises:
        ModelFileError: the window is not a positive integer, or layer_types is not a list of names.
        UnsupportedModelError: a layer has neither full nor sliding attention, or sliding layers have no window.
    """
    config = fill_defaults(config)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, (list, tuple)) or not all(isinstance(kind, str) for kind in kinds):
        raise ModelFileError(f"{where} has layer_types {kinds!r}; they are a list of names")
    kinds = [_OLDER_NAMES.get(kind, kind) for kind in kinds]
    others = sorted({*kinds} - {_FULL, _SLIDING})
    if others:
        raise UnsupportedModelError(f"layers of {where} have {', '.join(others)}; a decoder has full attention alone")
    window = config.get("sliding_window")
    rule = FAMILIES[config["model_type"]].window
    if rule is WindowRule.NONE:
        return None
    if window is not None and (type(window) is not int or window < 1):
        raise ModelFileError(f"{where} has sliding_window {window!r}; it is a positive number, or null")
    if rule is WindowRule.ALL or (rule is WindowRule.LISTED and not kinds):
        return window
    if kinds and len(kinds) != layers:
        raise ModelFileError(f"{where} has {len(kinds)} layer_types for {layers} layers; name one for each")
    window = window if config.get("use_sliding_window") or rule is WindowRule.LISTED else None
    if not kinds and window is not None:
        first = config.get("max_window_layers")
        if type(first) is not int:
            raise ModelFileError(f"{where} has max_window_layers {first!r}; it is a number of layers")
        return window if first < layers else None
    if window is None and _SLIDING in kinds:
        raise UnsupportedModelError(
            f"{where} has layers of {_SLIDING} and no window (use_sliding_window, sliding_window); state one, or name "
            f"the layers {_FULL}"
        )
    return window if _SLIDING in kinds else None
