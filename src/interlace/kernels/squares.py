"""RMS normalisation in the ops around it: whoever writes a row leaves what is needed, whoever multiplies it divides.

    y = (x * scale / sqrt(mean(x^2) + eps)) @ weight.T = factor * (scaled @ weight.T)

The op that writes x (M, N) also writes ``scaled`` = x * scale and ``squares`` (M, ceil(N / 64)) in float32: of each 64
columns of x, as stored, the sum of squares. A matmul of ``scaled`` multiplies its sums by the factor of their row,
1 / sqrt(sum(squares) / N + eps). So no op stands between the two, and none has to see a whole row before the next may
begin to multiply.
"""

from __future__ import annotations

import numpy as np

from interlace.core.dtypes import fp32
from interlace.graph.tensor import Tensor
from interlace.kernels.base import check_argument, require
from interlace.kernels.bodies import Array

#: Columns whose squares are summed to one number.
COLUMNS = 64


def blocks(columns: int) -> int:
    """Sums of a row of so many columns."""
    return -(-columns // COLUMNS)


def sums_of_squares(x: Array) -> Array:
    """Of each 64 columns of x (M, N): (M, ceil(N / 64))."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % COLUMNS)))
    return np.asarray((padded**2).reshape(len(x), -1, COLUMNS).sum(axis=2))


def factors(squares: Array, columns: int, eps: float) -> Array:
    """Of each row of so many columns, given its sums of squares, what its products are multiplied by: (M, 1)."""
    return np.asarray(1 / np.sqrt(squares.sum(axis=1, keepdims=True) / columns + eps))


def left(
    op: str, out: Tensor, scale: Tensor | None, scaled: Tensor | None, squares: Tensor | None, width: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The scale that an op reads, and the scaled output (M, N) and sums of squares that it leaves; None if it does not.

    Args:
        width: columns of its tile.

    Raises:
        ArgumentError, ShapeError, DTypeError: tensors that do not match, some of the three without the others, or a
            tile that cuts a sum.
    """
    given = [tensor is not None for tensor in (scale, scaled, squares)]
    require(all(given) or not any(given), f"op {op!r}: give scale, scaled and squares, or none of them")
    if scale is None or scaled is None or squares is None:
        return None
    m, n = out.shape
    check_argument(op, "scale", scale, (n,), out.dtype)
    check_argument(op, "scaled", scaled, (m, n), out.dtype)
    check_argument(op, "squares", squares, (m, blocks(n)), fp32)
    require(
        width % COLUMNS == 0,
        f"op {op!r}: tiles of {width} columns cut sums of squares, which are of {COLUMNS} columns; use a multiple of "
        f"{COLUMNS}",
    )
    return scale, scaled, squares
