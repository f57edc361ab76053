"""Attention of a chunk in float64, row by row, and inputs that have every kind of segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import interlace as il
from interlace.kernels.causal_attention import AttentionTile
from interlace.kernels.chunk_attention import chunk_attention

#: (sequence, cached positions, tokens) of the segments of a chunk, with padding after them.
SEGMENTS = ((3, 70, 9), (0, 0, 12), (1, 128, 1), (4, 1, 30), (2, 191, 9))
BATCH, CAPACITY, HEADS, DECODED, PADDING = 5, 200, 2, 3, 9


def draw_chunk_inputs(
    dtype: il.DType,
    d: int,
    group: int,
    page: int,
    tile: AttentionTile,
    segments: tuple[tuple[int, int, int], ...] = SEGMENTS,
    padding: int = PADDING,
) -> tuple[il.Graph, dict[str, Any]]:
    """Return the graph of one op and its inputs, with NaN in padding and in caches after what is cached."""
    random = np.random.default_rng(d + group)
    chunk = sum(count for *_, count in segments) + padding
    rows, each = DECODED + chunk, -(-CAPACITY // page) if page else 0
    capacity = each * page if page else CAPACITY
    shapes: dict[str, tuple[int, ...]] = {"q": (rows, HEADS * group * d), "k": (chunk, HEADS * d)}
    shapes |= {"v": (rows, HEADS * d), "first": (chunk,), "position": (rows,), "sequence": (rows,)}
    cache = (BATCH * each + 1, HEADS, page, d) if page else (BATCH, HEADS, capacity, d)
    shapes |= dict.fromkeys(("k_cache", "v_cache"), cache) | ({"table": (BATCH, each)} if page else {})
    shapes |= {"rope": (capacity, d)} | ({"q_norm": (d,)} if group > 1 else {})
    whole = {"first", "position", "sequence", "table"}
    given = {name: random.standard_normal(shape) for name, shape in shapes.items() if name not in whole}
    given["first"] = np.full(chunk, chunk, np.int32)
    given["position"], given["sequence"] = np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
    if page:
        given["table"] = random.permutation(BATCH * each + 1)[: BATCH * each].reshape(BATCH, each).astype(np.int32)
    begin, cached = 0, np.zeros(BATCH, int)
    for of, start, count in segments:
        own = slice(DECODED + begin, DECODED + begin + count)
        given["first"][begin : begin + count] = begin
        given["sequence"][own], given["position"][own] = of, np.arange(start, start + count)
        begin, cached[of] = begin + count, start
    for name in ("q", "k", "v"):
        given[name][len(given[name]) - padding :] = np.nan
    for of, end in enumerate(cached):
        for name in ("k_cache", "v_cache"):
            if not page:
                given[name][of, :, end:] = np.nan
            elif end < capacity:
                given[name][given["table"][of, end // page], :, end % page :] = np.nan
                given[name][given["table"][of, end // page + 1 :]] = np.nan
    kinds = dict.fromkeys(whole, il.int32) | {"rope": il.fp32}
    made = {name: il.Tensor(name, shape, kinds.get(name, dtype)) for name, shape in shapes.items()}
    out = il.Tensor("out", (rows, HEADS * group * d), dtype)
    op = chunk_attention("attention", **made, out=out, tile=tile, eps=1e-2)
    given["out"] = np.full(out.shape, np.nan)  # other ops write its first rows
    return il.Graph("chunk", (*made.values(), out), (op,), (*made, "out"), ("out",)), given


def compute_chunk_attention(graph: il.Graph, given: Mapping[str, Any]) -> NDArray[np.float64]:
    """Compute the rows of the chunk."""
    op = graph.op("attention")
    d, group, base = (int(op.param(name)) for name in ("D", "GROUP", "BASE"))
    out = np.zeros(given["q"][base:].shape)
    for row, begin in enumerate(given["first"]):
        if begin > row:
            continue
        of, end = given["sequence"][base + row], given["position"][base + begin]
        for head in range(HEADS * group):
            mine, shared = slice(head * d, head * d + d), slice(head // group * d, head // group * d + d)
            old = []
            for name in ("k_cache", "v_cache"):
                cache = given[name]
                if "table" in given:
                    cache = np.concatenate([cache[page] for page in given["table"][of]], axis=1)
                else:
                    cache = cache[of]
                old.append(cache[head // group, :end])
            keys = np.concatenate([old[0], given["k"][begin : row + 1, shared]])
            values = np.concatenate([old[1], given["v"][base + begin : base + row + 1, shared]])
            query = given["q"][base + row, mine].astype(np.float64)
            if "q_norm" in given:
                query = query / np.sqrt((query**2).mean() + 1e-2) * given["q_norm"]
            cos, sin = np.split(given["rope"][given["position"][base + row]].astype(np.float64), 2)
            turned = (query[: d // 2] + 1j * query[d // 2 :]) * (cos + 1j * sin)
            scores = keys @ np.concatenate([turned.real, turned.imag]) / d**0.5
            weights = np.exp(scores - scores.max())
            out[row, mine] = weights @ values / weights.sum()
    return out
