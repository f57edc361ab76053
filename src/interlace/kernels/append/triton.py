"""The Triton body that appends to caches."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrowed
from interlace.kernels.primitives.pages import row_of
from interlace.kernels.primitives.rope import elements, placed, position_at


@triton.jit
def append_tile(
    tile,
    k,
    v,
    position,
    rope,
    k_cache,
    v_cache,
    table,
    k_norm,
    HEADS: tl.constexpr,
    CAPACITY,
    PAGE: tl.constexpr,
    PAGES,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
):
    d = elements(D)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    for n in range(COUNT):
        i = n if PAGE else tile.i
        j = tile.i if PAGE else n
        at = position_at(position, i, CAPACITY)
        head = tl.cast(i, tl.int64) * HEADS + j
        key = placed(k + head * D + one, k_norm, rope + at.to(tl.int64) * D, D, EPS)
        row = row_of(table, i, j, at, HEADS, CAPACITY, PAGE, PAGES)
        there = (row >= 0) & (d >= 0)
        tl.store(k_cache + row * D + d, narrowed(key, k_cache.dtype.element_ty), mask=there)
        tl.store(v_cache + row * D + d, tl.load(v + head * D + d), mask=there)
