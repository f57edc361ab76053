"""The Triton body of matmul: accumulate over a k-range, finish with the epilogue, prefetch weights.

Rows and columns beyond the edge are clamped to the last one instead of masked, so that the main loop has no
predicates; their sums are computed and never stored. Only a ragged K needs masks. The loop counts whole chunks, so
that the compiler knows the alignment of every address.
"""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels import gelu
from interlace.kernels.primitives.dot import dot, narrow
from interlace.kernels.primitives.prefetch import prefetch_rows
from interlace.kernels.primitives.semaphore import count_chunks, wait_chunk
from interlace.kernels.primitives.squares import sum_squares

_GELU_TWICE, _GELU_CUBIC = tl.constexpr(2 * gelu.SCALE), tl.constexpr(gelu.CUBIC)
_SQUARED_AT_ONCE = tl.constexpr(128)


@triton.jit
def _load_chunk(pointer, within, K: tl.constexpr, BK: tl.constexpr, k):
    """Load one chunk of an operand; ``within`` holds the indices of its elements along K."""
    if K % BK == 0:
        value = tl.load(pointer + k)
    else:
        value = tl.load(pointer + k, mask=within < K - k, other=0.0)
    return value


@triton.jit
def _scale_chunk(value, x_scale, along, K: tl.constexpr, BK: tl.constexpr, k, SWAP: tl.constexpr):
    """Scale one chunk of x if there is a scale; K is its first axis if SWAP."""
    if x_scale is not None:
        scale = _load_chunk(x_scale + along, along, K, BK, k).to(tl.float32)
        scale = scale[:, None] if SWAP else scale[None, :]
        value = narrow(value.to(tl.float32) * scale, value.dtype)
    return value


@triton.jit
def matmul_accumulate(
    tile,
    sync,
    x,
    x_scale,
    weight,
    gate,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    SWAP: tl.constexpr,
):
    # Operands are addressed as the tensor core reads them, so that no block is transposed on the way: left (rows, K)
    # times right (K, columns), where the weights are right, or left if SWAP.
    row = tl.minimum(tile.i * BM + tl.arange(0, BM), M - 1).to(tl.int64) * K
    column = tl.minimum(tile.j * BN + tl.arange(0, BN), N - 1).to(tl.int64) * K
    along = tl.arange(0, BK)
    if SWAP:
        left = weight + column[:, None] + along[None, :]
        right = x + row[None, :] + along[:, None]
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        left = x + row[:, None] + along[None, :]
        right = weight + column[None, :] + along[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
    if gate is None:
        for s in range(count_chunks(tile, sync)):
            lo, hi = wait_chunk(tile, sync, s)
            for chunk in tl.range(lo // BK, tl.cdiv(hi, BK), num_stages=STAGES):
                a = _load_chunk(left, along[None, :], K, BK, chunk * BK)
                b = _load_chunk(right, along[:, None], K, BK, chunk * BK)
                if SWAP:
                    b = _scale_chunk(b, x_scale, along, K, BK, chunk * BK, SWAP)
                else:
                    a = _scale_chunk(a, x_scale, along, K, BK, chunk * BK, SWAP)
                acc = dot(a, b, acc, sync.INTERPRET)
        return (acc,)
    else:
        acc_gate = tl.zeros_like(acc)
        if SWAP:
            gates = gate + column[:, None] + along[None, :]
        else:
            gates = gate + column[None, :] + along[:, None]
        for s in range(count_chunks(tile, sync)):
            lo, hi = wait_chunk(tile, sync, s)
            for chunk in tl.range(lo // BK, tl.cdiv(hi, BK), num_stages=STAGES):
                a = _load_chunk(left, along[None, :], K, BK, chunk * BK)
                b = _load_chunk(right, along[:, None], K, BK, chunk * BK)
                if SWAP:
                    b = _scale_chunk(b, x_scale, along, K, BK, chunk * BK, SWAP)
                else:
                    a = _scale_chunk(a, x_scale, along, K, BK, chunk * BK, SWAP)
                acc = dot(a, b, acc, sync.INTERPRET)
                if SWAP:
                    acc_gate = dot(_load_chunk(gates, along[None, :], K, BK, chunk * BK), b, acc_gate, sync.INTERPRET)
                else:
                    acc_gate = dot(a, _load_chunk(gates, along[:, None], K, BK, chunk * BK), acc_gate, sync.INTERPRET)
        return (acc, acc_gate)


@triton.jit
def matmul_finish(
    tile,
    acc,
    bias,
    residual,
    x_squares,
    x_whole,
    scale,
    out,
    scaled,
    squares,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SWAP: tl.constexpr,
    EPS,
    SQUARED: tl.constexpr = 64,
    KEPT: tl.constexpr = True,
):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    at = row.to(tl.int64) * N + column
    value = tl.trans(acc[0]) if SWAP else acc[0]
    if x_squares is not None:
        BLOCKS: tl.constexpr = (K + SQUARED - 1) // SQUARED
        total = tl.zeros((BM,), tl.float32)
        for first in tl.static_range(0, BLOCKS, 32):
            block = first + tl.arange(0, 32)[None, :]
            known = (row < M) & (block < BLOCKS)
            total += tl.sum(tl.load(x_squares + row.to(tl.int64) * BLOCKS + block, mask=known, other=0.0), 1)
        factor = (1.0 / tl.sqrt(total / K + EPS))[:, None]
        value *= factor
    if x_whole is not None:
        of_row = x_whole + row.to(tl.int64) * K
        own = tl.zeros((BM, _SQUARED_AT_ONCE), tl.float32)
        for first in range(0, K, _SQUARED_AT_ONCE):
            column_of_x = first + tl.arange(0, _SQUARED_AT_ONCE)[None, :]
            of_x = tl.load(of_row + column_of_x, mask=(row < M) & (column_of_x < K), other=0.0).to(tl.float32)
            own += of_x * of_x
        factor = (1.0 / tl.sqrt(tl.sum(own, 1) / K + EPS))[:, None]
        value *= factor
    if bias is not None:
        value += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
    if len(acc) == 2:
        gated = tl.trans(acc[1]) if SWAP else acc[1]
        if x_squares is not None or x_whole is not None:
            gated *= factor
        value *= gated * tl.sigmoid(gated)
    elif ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == "silu":
        value *= tl.sigmoid(value)
    elif ACTIVATION == "gelu-tanh":
        # 0.5 * (1 + tanh(y)) = sigmoid(2 y), which saturates without overflow. Under the interpreter a module
        # constant cannot multiply a block from the left.
        value *= tl.sigmoid((value + value * _GELU_CUBIC * value * value) * _GELU_TWICE)
    if residual is not None:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if KEPT:
        stored = narrow(value, out.dtype.element_ty)
        tl.store(out + at, stored, mask=inside)
    else:
        stored = narrow(value, scaled.dtype.element_ty)
    if scale is not None:
        value = tl.where(inside, stored.to(tl.float32), 0.0)
        gain = tl.load(scale + column, mask=column < N, other=0.0).to(tl.float32)
        tl.store(scaled + at, narrow(value * gain, scaled.dtype.element_ty), mask=inside)
        SUMS: tl.constexpr = (BN + SQUARED - 1) // SQUARED
        OF_ROW: tl.constexpr = (N + SQUARED - 1) // SQUARED
        block = tile.j * SUMS + tl.arange(0, SUMS)[None, :]
        sums = sum_squares(value, BM, BN, SQUARED)
        tl.store(squares + row.to(tl.int64) * OF_ROW + block, sums, mask=(row < M) & (block < OF_ROW))


@triton.jit
def matmul_prefetch(
    tile,
    weight,
    gate,
    N: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Prefetch into the L2 the first PREFETCH bytes of the item's weights."""
    if PREFETCH > 0:
        column = tl.minimum(tile.j * BN + tl.arange(0, BN), N - 1).to(tl.int64)
        size: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        if gate is None:
            prefetch_rows(weight + column * K + tile.k_lo, tile.k_hi - tile.k_lo, PREFETCH // BN, size)
        else:
            prefetch_rows(weight + column * K + tile.k_lo, tile.k_hi - tile.k_lo, PREFETCH // BN // 2, size)
            prefetch_rows(gate + column * K + tile.k_lo, tile.k_hi - tile.k_lo, PREFETCH // BN // 2, size)
