"""The Triton body of attention of chunks: an online softmax over the cache of each segment, then over the chunk."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.causal_attention.triton import update_softmax
from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.pages import find_row
from interlace.kernels.primitives.rope import apply_rope, make_indices, mask_padding


@triton.jit
def chunk_attention_tile(
    tile,
    sync,
    q,
    k,
    v,
    first,
    position,
    sequence,
    k_cache,
    v_cache,
    rope,
    q_norm,
    table,
    out,
    ROWS,
    BASE,
    BATCH,
    CAPACITY,
    PAGE: tl.constexpr,
    PAGES,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
    ANGLES,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
):
    scale: tl.constexpr = 1.4426950408889634 / D**0.5
    wide: tl.constexpr = KV_HEADS * D  # elements of a row of keys
    d = make_indices(D)
    top = (tl.cdiv(ROWS, BM) - 1 - tile.i) * BM
    row = top + tl.arange(0, BM)
    inside = row < ROWS
    begin = tl.maximum(tl.load(first + row, mask=inside, other=ROWS), 0)
    of = tl.load(sequence + BASE + row, mask=inside, other=-1)
    live = (begin <= row) & (of >= 0) & (of < BATCH)
    low = tl.min(tl.where(live, begin, ROWS), 0)
    high = tl.max(tl.where(live, row + 1, 0), 0)

    mine = BASE + tl.minimum(row, ROWS - 1)
    at = (mine.to(tl.int64) * (KV_HEADS * GROUP) + tile.j * GROUP + tile.l) * D
    angles = rope + tl.minimum(tl.maximum(tl.load(position + mine), 0), ANGLES - 1).to(tl.int64) * D
    queries = apply_rope(q + at[:, None], q_norm, angles[:, None], D, EPS)
    queries = mask_padding(narrow(tl.where(live[:, None], queries, 0.0), q.dtype.element_ty), D)
    most = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, d.shape[0]), tl.float32)
    column = tl.arange(0, BN)

    # Each row that begins a segment, or continues one of the tile before, leads the rows that read the same cache.
    for n in range(BM):
        leader = tl.minimum(top + n, ROWS - 1)
        own = tl.maximum(tl.load(first + leader), 0)
        named = tl.load(sequence + BASE + leader)
        leads = (top + n < ROWS) & (named >= 0) & (named < BATCH) & ((own == leader) | ((n == 0) & (own <= leader)))
        known = tl.minimum(tl.maximum(tl.load(position + BASE + tl.minimum(own, leader)), 0), CAPACITY)
        cached = tl.where(leads, known, 0)
        named = tl.minimum(tl.maximum(named, 0), BATCH - 1)
        for start in tl.range(0, cached, BN, num_stages=STAGES):
            there = start + column < cached
            away = tl.maximum(find_row(table, named, tile.j, start, KV_HEADS, CAPACITY, PAGE, PAGES), 0) * D
            keys = tl.load(k_cache + away + d[:, None] + column[None, :] * D, mask=there[None, :], other=0.0)
            values = tl.load(v_cache + away + column[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
            seen = (live & (begin == own))[:, None] & there[None, :]
            most, weight, acc = update_softmax(queries, keys, seen, values, most, weight, acc, scale, sync.INTERPRET)

    for start in tl.range(low, high, BN, num_stages=STAGES):
        number = start + column
        known = number < high
        away = number.to(tl.int64) * wide + tile.j * D
        keys = tl.load(k + d[:, None] + away[None, :], mask=known[None, :], other=0.0)
        of_step = (BASE + number).to(tl.int64) * wide + tile.j * D
        values = tl.load(v + of_step[:, None] + d[None, :], mask=known[:, None], other=0.0)
        seen = live[:, None] & (number[None, :] <= row[:, None]) & (number[None, :] >= begin[:, None])
        most, weight, acc = update_softmax(queries, keys, seen, values, most, weight, acc, scale, sync.INTERPRET)

    result = tl.where(live[:, None], acc / tl.where(live, weight, 1.0)[:, None], 0.0)
    to = ((BASE + row).to(tl.int64) * (KV_HEADS * GROUP) + tile.j * GROUP + tile.l) * D
    tl.store(out + to[:, None] + d[None, :], narrow(result, out.dtype.element_ty), mask=inside[:, None])
