"""Heads of queries and keys rotated to their position (RoPE), in Triton; ``kernels/rope`` has the formulas."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_position(position, b, CAPACITY):
    """Load the position of sequence ``b``, clamped to the cache."""
    return tl.minimum(tl.maximum(tl.load(position + b), 0), CAPACITY - 1)


@triton.jit
def make_indices(D: tl.constexpr):
    """Return the element indices of a head's block: all elements, padded to a power of two with the last one.

    Results for padding equal those of the last element, so storing them repeatedly is harmless.
    """
    WIDE: tl.constexpr = triton.next_power_of_2(D)
    d = tl.arange(0, WIDE)
    if WIDE != D:
        d = tl.minimum(d, D - 1)
    return d


@triton.jit
def mask_padding(value, D: tl.constexpr):
    """Zero the padding of a block (n, elements of ``make_indices``)."""
    WIDE: tl.constexpr = triton.next_power_of_2(D)
    if WIDE != D:
        value = tl.where(tl.arange(0, WIDE)[None, :] < D, value, 0.0)
    return value


@triton.jit
def apply_rope(x, weight, angles, D: tl.constexpr, EPS: tl.constexpr):
    """Load a head of D elements per pointer of ``x`` (n, 1), normalise by ``weight`` unless None, and rotate.

    ``angles`` is a row of the table. The result is float32 (n, elements of ``make_indices``).
    """
    WIDE: tl.constexpr = triton.next_power_of_2(D)
    d = make_indices(D)[None, :]
    half: tl.constexpr = D // 2
    if WIDE == D:
        pair = d ^ half
    else:
        pair = (d + half) % D
    value = tl.load(x + d).to(tl.float32)
    other = tl.load(x + pair).to(tl.float32)
    if weight is not None:
        scale = 1.0 / tl.sqrt(tl.sum(mask_padding(value * value, D), 1)[:, None] / D + EPS)
        value *= scale * tl.load(weight + d).to(tl.float32)
        other *= scale * tl.load(weight + pair).to(tl.float32)
    cos = tl.load(angles + d % half)
    sin = tl.load(angles + half + d % half)
    return value * cos + tl.where(d < half, -other, other) * sin
