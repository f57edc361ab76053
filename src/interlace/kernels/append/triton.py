"""The Triton body that appends to KV caches."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.pages import find_row
from interlace.kernels.primitives.rope import apply_rope, load_position, make_indices


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
    sequence,
    k_norm,
    HEADS: tl.constexpr,
    CAPACITY,
    PAGE: tl.constexpr,
    PAGES,
    BATCH,
    COUNT: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
):
    d = make_indices(D)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    for n in range(COUNT):
        by_head: tl.constexpr = PAGE != 0 or sequence is not None
        i = n if by_head else tile.i
        j = tile.i if by_head else n
        at = load_position(position, i, CAPACITY)
        head = tl.cast(i, tl.int64) * HEADS + j
        key = apply_rope(k + head * D + one, k_norm, rope + at.to(tl.int64) * D, D, EPS)
        if sequence is None:
            row = find_row(table, i, j, at, HEADS, CAPACITY, PAGE, PAGES)
            there = (row >= 0) & (d >= 0)
        else:
            named = tl.load(sequence + i)
            of = tl.minimum(tl.maximum(named, 0), BATCH - 1)
            row = find_row(table, of, j, at, HEADS, CAPACITY, PAGE, PAGES)
            there = (row >= 0) & (named == of) & (d >= 0)
        tl.store(k_cache + row * D + d, narrow(key, k_cache.dtype.element_ty), mask=there)
        tl.store(v_cache + row * D + d, tl.load(v + head * D + d), mask=there)
