"""Queries and keys as attention takes them: normalised where the model does so, and rotated to their position.

Rotary embeddings (Su et al., 2021) in halves, as ``transformers`` has them in its Llama: with a table row of D / 2
cosines, then D / 2 sines, of a position,

    y[d]         = x[d] cos[d] - x[d + D / 2] sin[d]
    y[d + D / 2] = x[d + D / 2] cos[d] + x[d] sin[d]         d < D / 2
"""

from __future__ import annotations

import numpy as np

from interlace.kernels.bodies import Array
from interlace.kernels.rms_norm import compute_rms_norm


def apply_rope(x: Array, angles: Array, norm: Array | None, eps: float) -> Array:
    """Heads x (..., D) normalised by ``norm`` (D,) if there is one, and rotated by ``angles`` (D,)."""
    if norm is not None:
        x = compute_rms_norm(x, norm, eps)
    low, high = np.split(x, 2, axis=-1)
    cos, sin = np.split(angles, 2)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def clamp_position(positions: Array, capacity: int) -> int:
    """The only position of a tile, clamped to the cache: one beyond it must touch nothing outside."""
    return int(np.clip(positions[0], 0, capacity - 1))
