"""Rounding to dtypes, and their types in NumPy; ``ml_dtypes`` defines those that NumPy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DType


def find_numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the type of ``dtype`` in NumPy."""
    return np.dtype(getattr(ml_dtypes, dtype.numpy, dtype.numpy))


def round_to(values: NDArray[np.floating[Any]], dtype: DType) -> NDArray[np.float32]:
    """Round values to the nearest (ties to even) of ``dtype``, and return them in float32.

    Magnitudes beyond the dtype's range become infinite; NaNs stay NaNs.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, np.float32)
        return single.astype(find_numpy_dtype(dtype)).astype(np.float32)
