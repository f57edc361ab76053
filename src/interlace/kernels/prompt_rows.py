"""Kernels for the rows of a prompt: the ops of a layer around its products and attention.

The slot, its number of cached tokens and the last row that is no padding are data on the device, so that a CUDA graph
holds for all of them. With 100 cached tokens and 40 new ones in a graph of 64 rows:

    row                 0    1  ...   39   40  ...   63
    position of RoPE  100  101  ...  139  140  ...  163    at most the last position of the table
    row of the cache  100  101  ...  139    -  ...    -    padding writes nothing

All is computed in float32, and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.pages import find_row

_ELEMENTS = 1024  # of heads that a block of threads processes


@triton.jit
def _add_and_normalize(x, increment, weight, total, out, N, EPS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < N
    at = tl.program_id(0).to(tl.int64) * N + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if increment is not None:
        value += tl.load(increment + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, narrow(value, total.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / N + EPS)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, narrow(value * scale * gain, out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(x, weight, angles, i, D: tl.constexpr, EPS: tl.constexpr):
    """Return both halves of a head for each pointer of ``x`` (n, 1), normalised by ``weight`` unless None, and rotated.

    Whole halves are loaded, by vectors, and each element once.
    """
    inside = i < D // 2
    low = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(x + D // 2 + i, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        scale = 1.0 / tl.sqrt(tl.sum(low * low + high * high, 1)[:, None] / D + EPS)
        low *= scale * tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
        high *= scale * tl.load(weight + D // 2 + i, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(angles + i, mask=inside, other=0.0)
    sin = tl.load(angles + D // 2 + i, mask=inside, other=0.0)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _rotate_and_append(
    q,
    k,
    v,
    q_norm,
    k_norm,
    rope,
    slot,
    start,
    last,
    table,
    q_out,
    k_out,
    k_cache,
    v_cache,
    POSITIONS,
    CAPACITY,
    PAGES,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    EPS: tl.constexpr,
    BH: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    at = tl.minimum(tl.load(start) + row, POSITIONS - 1)
    angles = rope + at * D
    i = tl.arange(0, triton.next_power_of_2(D // 2))[None, :]
    of_queries: tl.constexpr = (HEADS + BH - 1) // BH
    if part < of_queries:
        head = part * BH + tl.arange(0, BH)[:, None]
        offset = (row.to(tl.int64) * HEADS + tl.minimum(head, HEADS - 1)) * D
        low, high = _rotate(q + offset, q_norm, angles, i, D, EPS)
        inside = (head < HEADS) & (i < D // 2)
        tl.store(q_out + offset + i, narrow(low, q_out.dtype.element_ty), mask=inside)
        tl.store(q_out + offset + D // 2 + i, narrow(high, q_out.dtype.element_ty), mask=inside)
    else:
        head = (part - of_queries) * BH + tl.arange(0, BH)[:, None]
        inside = (head < KV_HEADS) & (i < D // 2)
        head = tl.minimum(head, KV_HEADS - 1)
        offset = (row.to(tl.int64) * KV_HEADS + head) * D
        low, high = _rotate(k + offset, k_norm, angles, i, D, EPS)
        first, second = narrow(low, k_cache.dtype.element_ty), narrow(high, k_cache.dtype.element_ty)
        if k_out is not None:
            tl.store(k_out + offset + i, first, mask=inside)
            tl.store(k_out + offset + D // 2 + i, second, mask=inside)
        cached = find_row(table, tl.load(slot), head, at, KV_HEADS, CAPACITY, PAGE, PAGES) * D
        exists = inside & (row <= tl.load(last)) & (cached >= 0)
        tl.store(k_cache + cached + i, first, mask=exists)
        tl.store(k_cache + cached + D // 2 + i, second, mask=exists)
        tl.store(v_cache + cached + i, tl.load(v + offset + i, mask=inside), mask=exists)
        tl.store(v_cache + cached + D // 2 + i, tl.load(v + offset + D // 2 + i, mask=inside), mask=exists)


@triton.jit
def _read_cached(
    k_cache,
    v_cache,
    table,
    slot,
    start,
    last,
    keys,
    values,
    ROWS,
    CAPACITY,
    PAGES,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
):
    at = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    head = tl.program_id(1)
    d = tl.arange(0, triton.next_power_of_2(D))[None, :]
    seen = at <= tl.load(start) + tl.load(last)
    cached = find_row(table, tl.load(slot), head, tl.where(seen, at, 0), KV_HEADS, CAPACITY, PAGE, PAGES) * D
    exists = seen & (cached >= 0) & (d < D)
    offset = (at.to(tl.int64) * KV_HEADS + head) * D + d
    inside = (at < ROWS) & (d < D)
    tl.store(keys + offset, tl.load(k_cache + cached + d, mask=exists, other=0.0), mask=inside)
    tl.store(values + offset, tl.load(v_cache + cached + d, mask=exists, other=0.0), mask=inside)


@dataclass(frozen=True)
class PromptRows:
    """Where the rows of a prompt are, as PyTorch tensors on one GPU.

    Attributes:
        rope: (positions, head_dim) fp32, cosines and then sines of each position.
        slot, start, last: int64 of one element: the slot, its number of cached tokens, and the last row that is no
            padding.
        table: (slots, pages of a slot) int32, the pages of each slot; None for contiguous caches.
        page: positions of a page, 0 for contiguous caches.
    """

    rope: Any
    slot: Any
    start: Any
    last: Any
    table: Any | None = None
    page: int = 0

    def _locate(self, cache: Any) -> tuple[int, int]:
        """Return a slot's capacity in positions and the number of pages, for ``find_row``."""
        return (cache.shape[2], 0) if self.table is None else (self.table.shape[1] * self.page, cache.shape[0])

    def rotate_and_append(
        self, q: Any, k: Any, v: Any, norms: tuple[Any, Any] | None, eps: float, caches: tuple[Any, Any], keys: bool
    ) -> tuple[Any, Any | None]:
        """Normalise heads where ``norms`` has weights (head_dim,), apply RoPE, and write keys and values to the caches.

        Args:
            q, k, v: contiguous (rows, heads, head_dim), of ``kv_heads`` heads for k and v.
            caches: keys and values of a layer, contiguous and in the layout of ``KVCache``.
            keys: True to return keys, too.

        Returns:
            Queries and keys (rows, heads, head_dim) after RoPE.
        """
        (rows, heads, d), kv_heads = q.shape, k.shape[1]
        block = min(max(_ELEMENTS // triton.next_power_of_2(d), 1), triton.next_power_of_2(heads))
        rotated, rotated_keys = q.new_empty(q.shape), k.new_empty(k.shape) if keys else None
        q_norm, k_norm = norms or (None, None)
        at = self.rope, self.slot, self.start, self.last, self.table
        extents = len(self.rope), *self._locate(caches[0]), heads, kv_heads, self.page, d, eps, block
        grid = rows, triton.cdiv(heads, block) + triton.cdiv(kv_heads, block)
        _rotate_and_append[grid](q, k, v, q_norm, k_norm, *at, rotated, rotated_keys, *caches, *extents, num_warps=2)
        return rotated, rotated_keys

    def read_cached(self, caches: tuple[Any, Any], rows: int) -> tuple[Any, Any]:
        """Return copies (rows, kv_heads, head_dim) of a slot's keys and values; zeros after those of row ``last``."""
        cache, (kv_heads, d) = caches[0], (caches[0].shape[1], caches[0].shape[3])
        block = max(2 * _ELEMENTS // triton.next_power_of_2(d), 1)
        keys, values = (cache.new_empty(rows, kv_heads, d) for _ in range(2))
        at = self.table, self.slot, self.start, self.last
        extents = rows, *self._locate(cache), kv_heads, self.page, d, block
        _read_cached[triton.cdiv(rows, block), kv_heads](*caches, *at, keys, values, *extents, num_warps=4)
        return keys, values


def add_and_normalize(x: Any, increment: Any | None, weight: Any, eps: float) -> tuple[Any, Any]:
    """Return ``x + increment``, x itself without an increment, and the RMS norm of the sum before it is rounded.

    Args:
        x, increment: contiguous PyTorch tensors (rows, columns) of one dtype.
        weight: (columns,).
    """
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    total, out = x if increment is None else x.new_empty(x.shape), x.new_empty(x.shape)
    warps = min(max(block // 512, 1), 16)
    _add_and_normalize[rows,](x, increment, weight, total, out, columns, eps, block, num_warps=warps)
    return total, out
