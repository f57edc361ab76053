"""Sums of squares of some columns each, in Triton; see ``kernels/squares``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_squares(value, ROWS: tl.constexpr, WIDTH: tl.constexpr, SQUARED: tl.constexpr):
    """Of float32 values (ROWS, WIDTH): (ROWS, 1) if there are no more columns than SQUARED, else WIDTH / SQUARED."""
    if WIDTH <= SQUARED:
        sums = tl.sum(value * value, 1)[:, None]
    else:
        sums = tl.sum(tl.reshape(value * value, (ROWS, WIDTH // SQUARED, SQUARED)), 2)
    return sums
