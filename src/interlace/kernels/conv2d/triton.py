"""The Triton body of a convolution as implicit GEMM: rows of a block are pixels, columns are output channels.

The loop runs over chunks of channels, with all taps of each. Pixels beyond the tile, taps outside of the image and
channels beyond the last chunk are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.dot import dot, narrow
from interlace.kernels.primitives.semaphore import count_chunks, wait_chunk


@triton.jit
def _locate_pixels(
    tile,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    TILE_IMAGES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    Q: tl.constexpr,
):
    """Return for each row of a block its image, output row, output column, and whether the tile has it."""
    pixel = tl.arange(0, BLOCK)
    image = tile.i * TILE_IMAGES + pixel // (TILE_ROWS * Q)
    row = tile.j * TILE_ROWS + pixel // Q % TILE_ROWS
    return image, row, pixel % Q, pixel < PIXELS


@triton.jit
def conv2d_accumulate(
    tile,
    sync,
    x,
    weight,
    IMAGES,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    Q: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    TILE_IMAGES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    image, row, column, inside = _locate_pixels(tile, BLOCK, PIXELS, TILE_IMAGES, TILE_ROWS, Q)
    inside = inside & (image < IMAGES)
    top, left = row * STRIDE_H - PAD_H, column * STRIDE_W - PAD_W
    of_image = x + image.to(tl.int64) * (H * W * C)
    feature = tl.minimum(tile.l * BN + tl.arange(0, BN), N - 1).to(tl.int64) * (R * S * C)
    along = tl.arange(0, BK)
    acc = tl.zeros((BLOCK, BN), tl.float32)
    for chunk in range(count_chunks(tile, sync)):
        lo, hi = wait_chunk(tile, sync, chunk)
        for step in tl.range(lo // BK * (R * S), tl.cdiv(hi, BK) * (R * S), num_stages=STAGES):
            block = step // (R * S)
            tap = step - block * (R * S)  # the interpreter takes no remainder by a constant
            r = tap // S
            h, w = top + r * DILATION_H, left + (tap - r * S) * DILATION_W
            channel = block * BK + along
            known = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            at = of_image + (h * W + w) * C
            a = tl.load(at[:, None] + channel[None, :], mask=known[:, None] & (channel < C)[None, :], other=0.0)
            pointer = weight + tap * C + feature[None, :] + channel[:, None]
            b = tl.load(pointer, mask=(channel < C)[:, None], other=0.0)
            acc = dot(a, b, acc, sync.INTERPRET)
    return (acc,)


@triton.jit
def conv2d_finish(
    tile,
    acc,
    bias,
    residual,
    out,
    IMAGES,
    N: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    TILE_IMAGES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BN: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    image, row, column, inside = _locate_pixels(tile, BLOCK, PIXELS, TILE_IMAGES, TILE_ROWS, Q)
    inside = inside & (image < IMAGES) & (row < P)
    feature = tile.l * BN + tl.arange(0, BN)
    at = ((image.to(tl.int64) * P + row) * Q + column)[:, None] * N + feature[None, :]
    known = inside[:, None] & (feature < N)[None, :]
    value = acc[0]
    if bias is not None:
        value += tl.load(bias + feature, mask=feature < N, other=0.0).to(tl.float32)[None, :]
    if residual is not None:
        value += tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
    if ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    tl.store(out + at, narrow(value, out.dtype.element_ty), mask=known)
