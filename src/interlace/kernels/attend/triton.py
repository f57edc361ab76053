"""The Triton body of decode attention: an online softmax over one split (Milakov and Gimelshein, 2018)."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import dot, narrow
from interlace.kernels.primitives.pages import find_row
from interlace.kernels.primitives.rope import apply_rope, load_position, make_indices, mask_padding


@triton.jit
def attend_tile(
    tile,
    sync,
    q,
    k,
    v,
    position,
    rope,
    k_cache,
    v_cache,
    table,
    shares,
    q_norm,
    k_norm,
    out,
    peak,
    total,
    HEADS: tl.constexpr,
    CAPACITY,
    PAGE: tl.constexpr,
    PAGES,
    BATCH,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    EPS: tl.constexpr,
):
    if shares is None:
        sequence = tile.i
        at = load_position(position, sequence, CAPACITY)
        share = tl.cdiv(tl.cdiv(at, BLOCK), SPLITS) * BLOCK
        low = tl.minimum(tile.l * share, at)
        high = tl.minimum(low + share, at)
        last = tile.l == SPLITS - 1
    else:
        named = tl.load(shares + tile.i * 3)
        sequence = tl.minimum(tl.maximum(named, 0), BATCH - 1)
        at = load_position(position, sequence, CAPACITY)
        most = tl.where(named < 0, 0, at)
        low = tl.minimum(tl.maximum(tl.load(shares + tile.i * 3 + 1), 0), most)
        high = tl.minimum(tl.maximum(tl.load(shares + tile.i * 3 + 2), low), most)
        last = (named >= 0) & (high == at)
    head = sequence.to(tl.int64) * HEADS + tile.j
    angles = rope + at.to(tl.int64) * D
    row = tl.arange(0, ROWS)[:, None]
    d = make_indices(D)
    scale: tl.constexpr = 1.4426950408889634 / D**0.5
    # Rows beyond the group repeat its last query, and are not stored.
    queries = apply_rope(q + (head * GROUP + tl.minimum(row, GROUP - 1)) * D, q_norm, angles, D, EPS)
    queries = narrow(mask_padding(queries, D), k_cache.dtype.element_ty)
    # This token's own key is rounded as in the cache. It initialises the softmax of the last split.
    one = tl.zeros((1, 1), tl.int32)
    key = narrow(apply_rope(k + head * D + one, k_norm, angles, D, EPS), k_cache.dtype.element_ty)
    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
    most = tl.where(last, score, float("-inf"))
    weight = tl.where(last, 1.0, 0.0) + tl.zeros((ROWS,), tl.float32)
    value = tl.load(v + head * D + d).to(tl.float32)
    acc = tl.where(last, value, 0.0)[None, :] + tl.zeros((ROWS, d.shape[0]), tl.float32)

    n = tl.arange(0, BLOCK)
    for start in tl.range(low, high, BLOCK, num_stages=3):
        inside = start + n < high
        # A block is contained in one page.
        first = tl.maximum(find_row(table, sequence, tile.j, start, HEADS, CAPACITY, PAGE, PAGES), 0) * D
        block = tl.load(k_cache + first + n[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        scores = dot(queries, block, tl.zeros((ROWS, BLOCK), tl.float32), sync.INTERPRET) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        more = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - more[:, None])
        fade = tl.exp2(most - more)
        weight = weight * fade + tl.sum(weights, 1)
        block = tl.load(v_cache + first + n[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = dot(narrow(weights, block.dtype), block, acc * fade[:, None], sync.INTERPRET)
        most = more

    part = ((tile.i.to(tl.int64) * HEADS + tile.j) * SPLITS + tile.l) * GROUP
    real = row < GROUP
    at = out + (part + row) * D + d[None, :]
    if WHOLE:
        tl.store(at, narrow(acc / weight[:, None], out.dtype.element_ty), mask=real)
    else:
        tl.store(at, acc, mask=real)
        tl.store(peak + part + row, most[:, None], mask=real)
        tl.store(total + part + row, weight[:, None], mask=real)
