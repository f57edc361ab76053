"""The Triton body that combines the splits of attention."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.rope import make_indices


@triton.jit
def combine_tile(
    tile,
    parts,
    peak,
    total,
    first,
    rows,
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
        inside = split < SPLITS
        place = head * SPLITS + split
    else:
        low = tl.minimum(tl.maximum(tl.load(first + tile.i), 0), SPLITS - 1)
        inside = split < tl.minimum(tl.maximum(tl.load(first + tile.i + 1), low + 1), SPLITS) - low
        row = tl.load(rows + low + split, mask=inside, other=0)
        place = tl.minimum(tl.maximum(row, 0), SPLITS - 1).to(tl.int64) * HEADS + tile.j
    d = make_indices(D)
    for query in range(GROUP):
        part = place * GROUP + query
        most = tl.load(peak + part, mask=inside, other=float("-inf"))
        weight = tl.exp2(most - tl.max(most))
        whole = tl.sum(weight * tl.load(total + part, mask=inside, other=0.0))
        each = tl.load(parts + part[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        joined = tl.sum(each * weight[:, None], 0) / whole
        tl.store(out + (head * GROUP + query) * D + d, narrow(joined, out.dtype.element_ty))
