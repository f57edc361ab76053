"""The Triton body of RMS normalisation."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import narrowed


@triton.jit
def rms_norm_tile(tile, x, weight, out, H: tl.constexpr, EPS: tl.constexpr, BN: tl.constexpr):
    column = tl.arange(0, BN)
    inside = column < H
    at = tile.i.to(tl.int64) * H + column
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / H + EPS)
    tl.store(out + at, narrowed(value * scale * gain, out.dtype.element_ty), mask=inside)
