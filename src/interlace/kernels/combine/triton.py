"""The Triton body that joins the splits of attention."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrowed


@triton.jit
def combine_tile(
    tile,
    parts,
    peak,
    total,
    first,
    out,
    HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tile.i.to(tl.int64) * HEADS + tile.j
    split = tl.arange(0, ROWS)
    if first is None:
        parts_of = head * SPLITS
        inside = split < SPLITS
    else:
        low = tl.minimum(tl.maximum(tl.load(first + tile.i), 0), SPLITS - 1)
        parts_of = tile.j.to(tl.int64) * SPLITS + low
        inside = split < tl.minimum(tl.maximum(tl.load(first + tile.i + 1), low + 1), SPLITS) - low
    d = tl.arange(0, D)
    for query in range(GROUP):
        part = (parts_of + split) * GROUP + query
        most = tl.load(peak + part, mask=inside, other=float("-inf"))
        weight = tl.exp2(most - tl.max(most))
        whole = tl.sum(weight * tl.load(total + part, mask=inside, other=0.0))
        each = tl.load(parts + part[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        joined = tl.sum(each * weight[:, None], 0) / whole
        tl.store(out + (head * GROUP + query) * D + d, narrowed(joined, out.dtype.element_ty))
