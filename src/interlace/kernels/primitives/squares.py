"""Sums of squares of each 64 columns, in Triton; see ``kernels/squares``."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels import squares

COLUMNS = tl.constexpr(squares.COLUMNS)


@triton.jit
def sums_of_squares(value, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Of float32 values (ROWS, WIDTH): (ROWS, 1) if there are fewer than 64 columns, else (ROWS, WIDTH / 64)."""
    if WIDTH <= COLUMNS:
        sums = tl.sum(value * value, 1)[:, None]
    else:
        sums = tl.sum(tl.reshape(value * value, (ROWS, WIDTH // COLUMNS, COLUMNS)), 2)
    return sums
