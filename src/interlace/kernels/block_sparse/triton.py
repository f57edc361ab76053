"""The Triton body of the block-sparse matmul."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import dot, narrow


@triton.jit
def block_sparse_matmul_tile(
    tile,
    sync,
    x,
    blocks,
    columns,
    rows,
    out,
    M,
    BLOCKS,
    N: tl.constexpr,
    K: tl.constexpr,
    HEIGHT: tl.constexpr,
    DEPTH: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    STEP: tl.constexpr = BK if BK < DEPTH else DEPTH
    STEPS: tl.constexpr = DEPTH // STEP
    PARTS: tl.constexpr = HEIGHT // BN
    block_row = tile.j // PARTS
    first = tl.maximum(tl.load(rows + block_row), 0)
    end = tl.minimum(tl.maximum(tl.load(rows + block_row + 1), 0), BLOCKS)
    row = tile.i * BM + tl.arange(0, BM)
    within_block = (tile.j - block_row * PARTS) * BN + tl.arange(0, BN)
    along = tl.arange(0, STEP)
    left = x + row.to(tl.int64)[:, None] * K + along[None, :]
    right = blocks + within_block[None, :] * DEPTH + along[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for chunk in tl.range(0, tl.maximum(end - first, 0) * STEPS, num_stages=STAGES):
        turn = chunk // STEPS  # the interpreter has no remainders of constants
        block = first + turn
        k = (chunk - turn * STEPS) * STEP
        column = tl.load(columns + block)
        known = (column >= 0) & (column < K // DEPTH)
        a = tl.load(left + (column * DEPTH + k), mask=known & (row < M)[:, None], other=0.0)
        b = tl.load(right + (block.to(tl.int64) * HEIGHT * DEPTH + k))
        acc = dot(a, b, acc, sync.INTERPRET)
    at = row.to(tl.int64)[:, None] * N + (tile.j * BN + tl.arange(0, BN))[None, :]
    tl.store(out + at, narrow(acc, out.dtype.element_ty), mask=(row < M)[:, None])
