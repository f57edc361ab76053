"""The Triton body that appends to caches."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrowed
from interlace.kernels.primitives.rope import placed, position_at


@triton.jit
def append_tile(
    tile,
    k,
    v,
    position,
    rope,
    k_cache,
    v_cache,
    k_norm,
    HEADS: tl.constexpr,
    CAPACITY,
    D: tl.constexpr,
    EPS: tl.constexpr,
):
    at = position_at(position, tile.i, CAPACITY)
    d = tl.arange(0, D)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    for j in range(HEADS):
        head = tile.i.to(tl.int64) * HEADS + j
        key = placed(k + head * D + one, k_norm, rope + at.to(tl.int64) * D, D, EPS)
        row = (head * CAPACITY + at) * D + d
        tl.store(k_cache + row, narrowed(key, k_cache.dtype.element_ty))
        tl.store(v_cache + row, tl.load(v + head * D + d))
