"""Queries and keys as attention needs them: normalised if the model does so, and rotated to their position (RoPE).

Rotary embeddings (Su et al., 2021) in halves, as in the Llama of ``transformers``. A position's table row holds D / 2
cosines, then D / 2 sines:

    y[d]         = x[d] cos[d] - x[d + D / 2] sin[d]
    y[d + D / 2] = x[d + D / 2] cos[d] + x[d] sin[d]         d < D / 2
"""

from __future__ import annotations

import numpy as np

from interlace.kernels.bodies import Array
from interlace.kernels.rms_norm import compute_rms_norm


def apply_rope(x: Array, angles: Array, norm: Array | None, eps: float) -> Array:
    """Normalise heads x (..., D) by ``norm`` (D,) if it is given, and rotate them by ``angles`` (D,)."""
    if norm is not None:
        x = compute_rms_norm(x, norm, eps)
    low, high = np.split(x, 2, axis=-1)
    cos, sin = np.split(angles, 2)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def clamp_position(positions: Array, capacity: int) -> int:
    """Return the only position of a tile, clamped to the cache, so that no access is out of range."""
    return int(np.clip(positions[0], 0, capacity - 1))
