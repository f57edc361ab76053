"""Rounding to dtypes that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DType

_BLOCK = 1 << 16  # elements; the intermediate values fit a CPU's caches


def round_to(values: NDArray[np.floating[Any]], dtype: DType) -> NDArray[np.float32]:
    """Round values to the nearest (ties to even) of ``dtype``, and return them in float32.

    Magnitudes beyond the dtype's range become infinite; NaNs stay NaNs.
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, np.float32)
        if dtype.numpy is not None:
            return single.astype(dtype.numpy).astype(np.float32)
    rounded = np.empty_like(single)
    flat, out = single.reshape(-1), rounded.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        _round_to_bf16(flat[block], out[block])
    return rounded


def _round_to_bf16(single: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Round to bf16, which is the upper half of a float32.

    Adding just under half a step, or half a step if the last kept bit is odd, carries into the upper half exactly when
    round-to-nearest-even rounds up.
    """
    bits, rounded = single.view(np.uint32), out.view(np.uint32)
    np.right_shift(bits, 16, out=rounded)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    np.copyto(out, single, where=np.isnan(single))
