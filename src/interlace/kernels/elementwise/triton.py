"""The Triton body of pointwise arithmetic."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels import gelu
from interlace.kernels.primitives.dot import narrow

_GELU_TWICE, _GELU_CUBIC = tl.constexpr(2 * gelu.SCALE), tl.constexpr(gelu.CUBIC)


@triton.jit
def _load_operand(rows, at, column, inside, N, ROWS: tl.constexpr):
    if ROWS:
        value = tl.load(rows + at, mask=inside, other=0.0)
    else:
        value = tl.load(rows + column, mask=column < N, other=0.0)
    return value.to(tl.float32)


@triton.jit
def elementwise_tile(
    tile,
    x,
    times,
    plus,
    out,
    M,
    N,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TIMES_ROWS: tl.constexpr,
    PLUS_ROWS: tl.constexpr,
):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    at = row.to(tl.int64) * N + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == 1:
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == 2:
        # As in the matmul's epilogue: 0.5 * (1 + tanh(y)) = sigmoid(2 y), with constants on the right.
        value *= tl.sigmoid((value + value * _GELU_CUBIC * value * value) * _GELU_TWICE)
    elif ACTIVATION == 3:
        value *= tl.sigmoid(value)
    if times is not None:
        value *= _load_operand(times, at, column, inside, N, TIMES_ROWS)
    if plus is not None:
        value += _load_operand(plus, at, column, inside, N, PLUS_ROWS)
    tl.store(out + at, narrow(value, out.dtype.element_ty), mask=inside)
