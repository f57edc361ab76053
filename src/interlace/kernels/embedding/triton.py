"""The Triton body of embedding."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embedding_tile(tile, tokens, table, out, V, H, BN: tl.constexpr):
    row = tl.minimum(tl.maximum(tl.load(tokens + tile.i), 0), V - 1).to(tl.int64)
    column = tile.j * BN + tl.arange(0, BN)
    inside = column < H
    tl.store(out + tile.i.to(tl.int64) * H + column, tl.load(table + row * H + column, mask=inside), mask=inside)
