"""The Triton body that rotates heads of a chunk."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrow
from interlace.kernels.primitives.rope import apply_rope, make_indices


@triton.jit
def rotate_tile(
    tile,
    x,
    position,
    rope,
    norm,
    out,
    ROWS,
    BASE,
    HEADS,
    CAPACITY,
    D: tl.constexpr,
    BM: tl.constexpr,
    BH: tl.constexpr,
    EPS: tl.constexpr,
):
    row = tile.i * BM + tl.arange(0, BM)
    inside = (row < ROWS)[:, None]
    row = tl.minimum(row, ROWS - 1)
    at = tl.minimum(tl.maximum(tl.load(position + BASE + row), 0), CAPACITY - 1)
    d = make_indices(D)[None, :]
    for n in range(BH):
        head = tile.j * BH + n
        of = tl.minimum(head, HEADS - 1)
        heads = x + ((BASE + row).to(tl.int64) * HEADS + of)[:, None] * D
        value = apply_rope(heads, norm, rope + at.to(tl.int64)[:, None] * D, D, EPS)
        tl.store(
            out + (row.to(tl.int64) * HEADS + of)[:, None] * D + d,
            narrow(value, out.dtype.element_ty),
            mask=inside & (head < HEADS),
        )
