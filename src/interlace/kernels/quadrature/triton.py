"""The Triton bodies of adaptive quadrature."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _integrate(centre, width, t, weight, PEAKS):
    height = tl.zeros_like(t)
    for p in range(PEAKS):
        w = tl.load(width + p)
        d = t - tl.load(centre + p)
        height += w / (w * w + d * d)
    return tl.sum(height * weight)


@triton.jit
def refine_tile(
    tile, centre, width, wanted, value, more, PEAKS, POINTS: tl.constexpr, TOLERANCE, BASE, LENGTH, LAST: tl.constexpr
):
    node = BASE + tile.i
    runs = True
    if wanted is not None:
        runs = tl.load(wanted + node) != 0
    # All steps but the first, which begins where the interval does and counts once.
    k = tl.arange(0, POINTS) + 1
    t = (tile.i + k.to(tl.float32) / POINTS) * LENGTH
    first = tl.zeros_like(t) + tile.i * LENGTH
    fine_weight = tl.where(k == POINTS, 1.0, tl.where(k % 2 == 1, 4.0, 2.0))
    coarse_weight = tl.where(k % 2 == 1, 0.0, tl.where(k == POINTS, 1.0, tl.where(k % 4 == 2, 4.0, 2.0)))
    once = tl.where(k == 1, 1.0, 0.0)
    begin = _integrate(centre, width, first, once, PEAKS)
    step = LENGTH / (3 * POINTS)
    fine = step * (begin + _integrate(centre, width, t, fine_weight, PEAKS))
    coarse = 2 * step * (begin + _integrate(centre, width, t, coarse_weight, PEAKS))
    off = fine - coarse
    split = runs & (tl.abs(off) > 15 * TOLERANCE)
    if LAST:
        split = split & False
    tl.store(value + node, tl.where(runs & (split == 0), fine + off / 15, 0.0))
    if not LAST:
        tl.store(more + 2 * node + 1, split.to(tl.int32))
        tl.store(more + 2 * node + 2, split.to(tl.int32))


@triton.jit
def total_tile(tile, value, out, N, BN: tl.constexpr):
    n = tl.arange(0, BN)
    tl.store(out, tl.sum(tl.load(value + n, mask=n < N, other=0.0)))
