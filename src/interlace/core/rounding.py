"""Rounding to dtypes that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DType


def round_to(values: NDArray[np.floating[Any]], dtype: DType) -> NDArray[np.float32]:
    """Values rounded to the nearest (ties to even) of ``dtype``, held in float32.

    Magnitudes beyond the dtype's range become infinite; NaNs stay NaNs.
    """
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, np.float32)
        if dtype.numpy is not None:
            return single.astype(dtype.numpy).astype(np.float32)
    # bf16 is the upper half of a float32. Adding just under half a step, or half a step if the last kept bit
    # is odd, carries into the upper half exactly when rounding to even goes up.
    bits = single.view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(single), single, rounded)
