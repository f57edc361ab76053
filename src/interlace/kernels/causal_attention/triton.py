"""The Triton body of causal attention: an online softmax over blocks of keys (Dao, FlashAttention-2, 2023)."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import dot, narrow


@triton.jit
def update_softmax(queries, keys, scores_seen, values, most, weight, acc, SCALE: tl.constexpr, INTERPRET: tl.constexpr):
    """Add one block of keys (D, BN) and values (BN, D) to the softmax; return the new (most, weight, acc).

    ``scores_seen`` masks the scores that count; None for all of them.
    """
    BM: tl.constexpr = queries.shape[0]
    scores = dot(queries, keys, tl.zeros((BM, keys.shape[1]), tl.float32), INTERPRET)
    if scores_seen is not None:
        scores = tl.where(scores_seen, scores, float("-inf"))
    more = tl.maximum(most, tl.max(scores, 1) * SCALE)
    # A row that has seen nothing yet must not subtract infinity from infinity.
    level = more if scores_seen is None else tl.where(more == float("-inf"), 0.0, more)
    weights = tl.exp2(scores * SCALE - level[:, None])
    fade = tl.exp2(most - level)
    weight = weight * fade + tl.sum(weights, 1)
    acc = dot(narrow(weights, values.dtype), values, acc * fade[:, None], INTERPRET)
    return more, weight, acc


@triton.jit
def causal_attention_tile(
    tile,
    sync,
    q,
    k,
    v,
    first,
    out,
    T,
    WINDOW,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
):
    scale: tl.constexpr = 1.4426950408889634 / D**0.5
    wide: tl.constexpr = KV_HEADS * D  # elements of a row of keys
    d = tl.arange(0, D)
    row = (tl.cdiv(T, BM) - 1 - tile.i) * BM + tl.arange(0, BM)
    begin = tl.load(first + tl.minimum(row, T - 1))
    begin = tl.maximum(tl.maximum(begin, row - WINDOW + 1), 0)
    live = (begin <= row) & (row < T)
    # Some row sees keys low to high; all rows see keys ``full`` to ``until``. Without live rows, both are empty.
    low = tl.min(tl.where(live, begin, T), 0)
    high = tl.max(tl.where(live, row + 1, 0), 0)
    full = tl.max(tl.where(live, begin, 0), 0)
    until = tl.min(tl.where(live, row + 1, T), 0)
    # Blocks from ``low`` on: some that begin before ``full``, then unmasked ones, then the rest.
    head = tl.maximum(tl.cdiv(full - low, BN), 0)
    whole = tl.maximum((until - low) // BN - head, 0)
    tail = tl.maximum(tl.cdiv(high - low, BN) - head - whole, 0)

    at = (row.to(tl.int64) * (KV_HEADS * GROUP) + tile.j * GROUP + tile.l) * D
    queries = tl.load(q + at[:, None] + d[None, :], mask=live[:, None], other=0.0)
    most = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)

    column = tl.arange(0, BN)
    keys = k + tile.j * D + d[:, None] + column[None, :] * wide
    values = v + tile.j * D + column[:, None] * wide + d[None, :]
    for n in tl.range(head, head + whole, num_stages=STAGES):
        away = (low + n * BN).to(tl.int64) * wide
        most, weight, acc = update_softmax(
            queries, tl.load(keys + away), None, tl.load(values + away), most, weight, acc, scale, sync.INTERPRET
        )
    for n in tl.range(0, head + tail, num_stages=STAGES):
        start = low + tl.where(n < head, n, n + whole) * BN
        away = start.to(tl.int64) * wide
        number = start + column
        # Rows between sequences are not read: they may contain anything.
        known = number < high
        known = known & (tl.load(first + number, mask=known, other=T) <= number)
        seen = (number[None, :] <= row[:, None]) & (number[None, :] >= begin[:, None]) & known[None, :]
        block = tl.load(keys + away, mask=known[None, :], other=0.0)
        others = tl.load(values + away, mask=known[:, None], other=0.0)
        most, weight, acc = update_softmax(queries, block, seen, others, most, weight, acc, scale, sync.INTERPRET)

    result = tl.where(live[:, None], acc / weight[:, None], 0.0)
    tl.store(out + at[:, None] + d[None, :], narrow(result, out.dtype.element_ty), mask=(row < T)[:, None])
