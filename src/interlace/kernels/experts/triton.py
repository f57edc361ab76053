"""The Triton body of the grouped GEMM over experts."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import dot, narrow


@triton.jit
def expert_matmul_tile(
    tile,
    sync,
    x,
    owner,
    weight,
    gate,
    out,
    E,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    expert = tl.load(owner + tile.i)
    some = (expert >= 0) & (expert < E)
    row = tile.i * BM + tl.arange(0, BM)
    column = tile.j * BN + tl.arange(0, BN)
    along = tl.arange(0, BK)
    away = tl.where(some, expert, 0).to(tl.int64) * N * K
    right = away + tl.minimum(column, N - 1).to(tl.int64)[None, :] * K + along[:, None]
    left = x + row.to(tl.int64)[:, None] * K + along[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    gated = tl.zeros((BM, BN), tl.float32)
    for chunk in tl.range(0, tl.where(some, tl.cdiv(K, BK), 0), num_stages=STAGES):
        k = chunk * BK
        within = k + along < K
        a = tl.load(left + k, mask=within[None, :], other=0.0)
        acc = dot(a, tl.load(weight + right + k, mask=within[:, None], other=0.0), acc, sync.INTERPRET)
        if gate is not None:
            gated = dot(a, tl.load(gate + right + k, mask=within[:, None], other=0.0), gated, sync.INTERPRET)
    if gate is not None:
        acc = acc * gated * tl.sigmoid(gated)
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out + at, narrow(acc, out.dtype.element_ty), mask=(column < N)[None, :])
