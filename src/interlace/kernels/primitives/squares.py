"""Sums of squares over blocks of columns, in Triton; see ``kernels/folded_norm``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_squares(value, ROWS: tl.constexpr, WIDTH: tl.constexpr, SQUARED: tl.constexpr):
    """Sum squares of (ROWS, WIDTH) float32 values to (ROWS, WIDTH / SQUARED), or (ROWS, 1) if WIDTH <= SQUARED."""
    if WIDTH <= SQUARED:
        sums = tl.sum(value * value, 1)[:, None]
    else:
        sums = tl.sum(tl.reshape(value * value, (ROWS, WIDTH // SQUARED, SQUARED)), 2)
    return sums
