"""Folded RMS normalisation: the producer of a row writes its scaled copy and sums of squares, the consumer divides.

    y = (x * scale / sqrt(mean(x^2) + eps)) @ weight.T = factor * (scaled @ weight.T)

The op that writes x (M, N) also writes ``scaled`` = x * scale and ``squares`` (M, ceil(N / C)) in float32.
``squares`` holds the sum of squares of each C columns of x, as stored; C is 64, or 16 for tiles as narrow as that. A
matmul of ``scaled`` multiplies its sums by the factor of their row, 1 / sqrt(sum(squares) / N + eps). No op is needed
between the two, and the matmul can begin before any op has seen a whole row.

The input of a graph has no producer to scale it. A matmul of few tokens then does everything: it scales x and
computes the squares of x (``kernels/matmul``, ``x_scale``).
"""

from __future__ import annotations

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32
from interlace.graph.tensor import Tensor
from interlace.kernels.base import check_argument, require
from interlace.kernels.bodies import Array

#: Numbers of columns whose squares may be summed to one number.
COLUMNS, FINE = 64, 16


def count_blocks(columns: int, squared: int = COLUMNS) -> int:
    """Return the number of sums in a row of ``columns`` columns, each over ``squared`` columns."""
    return -(-columns // squared)


def find_squared_columns(op: str, argument: str, squares: Tensor, rows: int, columns: int) -> int:
    """Return the number of columns of each sum in a tensor, given the rows and columns that it covers.

    Raises:
        ArgumentError, ShapeError, DTypeError: a tensor that cannot hold such sums.
    """
    check_type(squares, Tensor, f"op {op!r}", argument)
    if squares.shape == (rows, count_blocks(columns, FINE)) != (rows, count_blocks(columns)):
        check_argument(op, argument, squares, (rows, count_blocks(columns, FINE)), fp32)
        return FINE
    check_argument(op, argument, squares, (rows, count_blocks(columns)), fp32)
    return COLUMNS


def sum_squares(x: Array, squared: int) -> Array:
    """Sum the squares of each ``squared`` columns of x (M, N): (M, ceil(N / squared))."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % squared)))
    return np.asarray((padded**2).reshape(len(x), -1, squared).sum(axis=2))


def compute_rms_factors(squares: Array, columns: int, eps: float) -> Array:
    """Return the factor (M, 1) for the products of each row of ``columns`` columns, given its sums of squares."""
    return np.asarray(1 / np.sqrt(squares.sum(axis=1, keepdims=True) / columns + eps))


def check_folded_outputs(
    op: str, out: Tensor, scale: Tensor | None, scaled: Tensor | None, squares: Tensor | None, width: int
) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """Check the folded outputs of an op.

    Args:
        width: columns of its tile.

    Returns:
        The scale that the op reads, the scaled output (M, N) and sums of squares that it writes, and the columns of
        each sum; None if the op has no folded outputs.

    Raises:
        ArgumentError, ShapeError, DTypeError: mismatched tensors, an incomplete set of the three, or a tile that cuts
            a sum.
    """
    given = [tensor is not None for tensor in (scale, scaled, squares)]
    require(all(given) or not any(given), f"op {op!r}: give scale, scaled and squares, or none of them")
    if scale is None or scaled is None or squares is None:
        return None
    m, n = out.shape
    check_argument(op, "scale", scale, (n,), out.dtype)
    check_argument(op, "scaled", scaled, (m, n), out.dtype)
    squared = find_squared_columns(op, "squares", squares, m, n)
    require(
        width % squared == 0,
        f"op {op!r}: tiles of {width} columns cut sums of squares, which are of {squared} columns; use a multiple of "
        f"{squared}",
    )
    return scale, scaled, squares, squared
