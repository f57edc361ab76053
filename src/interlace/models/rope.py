"""Frequencies of rotary position embeddings (Su et al., arXiv 2104.09864), plain and scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import ModelFileError, UnsupportedModelError

_PLAIN = ("default", "none", None)


def compute_frequencies(
    head_dim: int, base: object, scaling: Mapping[str, Any], where: str
) -> tuple[NDArray[np.float32], float]:
    """Compute the rotation per position of each pair in radians, (head_dim / 2,), and the scale of cosines and sines.

    Args:
        head_dim: elements of a head.
        base: base of the frequencies ("rope theta").
        scaling: scaling parameters with ``rope_type`` (or ``type``), as in config.json.
        where: source of the parameters, for error messages.

    Raises:
        ModelFileError: a parameter is missing or not a positive number.
        UnsupportedModelError: the type of scaling is unknown, or depends on the sequence length.
    """
    kind = find_rope_type(scaling)
    with np.errstate(all="ignore"):
        inv_freq = _parse_number(base, "rope theta", where) ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if kind == "linear":
            inv_freq = inv_freq / _parse_number(scaling.get("factor"), "factor", where)
        elif kind == "llama3":
            inv_freq = _scale_llama3(inv_freq, scaling, where)
        elif kind not in _PLAIN:
            raise UnsupportedModelError(
                f"{where} scales RoPE by {kind!r}; files with 'linear' and 'llama3' are read, and Decoder.from_model "
                "takes every kind that is fixed"
            )
        return check_finite(inv_freq.astype(np.float32), where), 1.0


def find_rope_type(scaling: Mapping[str, Any]) -> object:
    """Return the type of scaling under its newer or older key, None if both are absent."""
    kind = scaling.get("rope_type")
    return scaling.get("type") if kind is None else kind


def check_finite(inv_freq: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    """Return the frequencies unchanged. Raises ModelFileError if one is infinite or NaN."""
    if not np.isfinite(inv_freq).all():
        raise ModelFileError(f"{where} has numbers of RoPE by which positions turn infinitely far; they are damaged")
    return inv_freq


def _scale_llama3(inv_freq: NDArray[np.float64], scaling: Mapping[str, Any], where: str) -> NDArray[np.float64]:
    """Stretch long waves by a factor, keep short ones, and interpolate between the two.

    Source: apply_scaling in https://github.com/meta-llama/llama-models.
    """
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, length = (_parse_number(scaling.get(name), name, where) for name in names)
    if high <= low:
        raise ModelFileError(f"{where} has a high_freq_factor of {high}, not above low_freq_factor {low}")
    waves = length * inv_freq / (2 * math.pi)  # waves per original context length
    kept = np.clip((waves - low) / (high - low), 0, 1)
    return inv_freq * (kept + (1 - kept) / factor)


def _parse_number(value: object, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise ModelFileError(f"{where} has a {name} of RoPE of {value!r}; it must be a positive number")
    return float(value)
