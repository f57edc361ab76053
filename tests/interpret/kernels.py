"""Kernels that a user might write, each with its NumPy meaning beside its Triton body."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

import interlace as il
from interlace import device
from interlace.kernels.bodies import Array, Params, Regions

# ---------------------------------------------------------------- scale: y = FACTOR * x


@triton.jit
def scale_tile(tile, x, y, M, N, FACTOR, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column < N)
    at = row * N + column
    tl.store(y + at, (tl.load(x + at, mask=inside).to(tl.float32) * FACTOR).to(y.dtype.element_ty), mask=inside)


SCALE = il.Kernel(
    "scale",
    il.Reference(lambda _, regions, params: {"y": regions["x"] * params["FACTOR"]}),
    lambda: il.TritonBody(scale_tile),
)


def scale(name: str, x: il.Tensor, y: il.Tensor, factor: float, tile: tuple[int, int] = (16, 16)) -> il.Op:
    """``y = factor * x`` for matrices; ``y`` may be ``x``."""
    (m, n), (bm, bn) = x.shape, tile
    i, j = il.axes(2)
    own = (i.block(bm), j.block(bn))
    params = {"M": m, "N": n, "FACTOR": factor, "BM": bm, "BN": bn}
    return SCALE.make_op(name, (-(-m // bm), -(-n // bn)), {"x": (x, own)}, {"y": (y, own)}, params=params)


# ---------------------------------------------------------------- row_sum: y[r] = sum over k of x[r, k]


@triton.jit
def row_sum_accumulate(tile, sync, x, M, K, BM: tl.constexpr, BK: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    acc = tl.zeros((BM, 1), tl.float32)
    for s in range(device.count_chunks(tile, sync)):
        lo, hi = device.wait_chunk(tile, sync, s)
        for k in range(lo, hi, BK):
            column = k + tl.arange(0, BK)[None, :]
            value = tl.load(x + row * K + column, mask=(row < M) & (column < hi), other=0.0)
            acc += tl.sum(value.to(tl.float32), 1)[:, None]
    return (acc,)


@triton.jit
def row_sum_finish(tile, acc, y, M, BM: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    tl.store(y + row, acc[0].to(y.dtype.element_ty), mask=row < M)


ROW_SUM = il.Kernel(
    "row_sum",
    il.Reference(
        lambda acc, regions, params: {"y": acc},
        lambda regions, params: np.sum(regions["x"], axis=1, keepdims=True),
    ),
    lambda: il.TritonBody(row_sum_finish, row_sum_accumulate),
)


def row_sum(name: str, x: il.Tensor, y: il.Tensor, rows: int = 16, block: int = 16) -> il.Op:
    """``y = x.sum(1, keepdim=True)`` for x of shape (m, k) and y of shape (m, 1)."""
    m, k = x.shape
    (i,) = il.axes(1)
    return ROW_SUM.make_op(
        name,
        (-(-m // rows),),
        {"x": (x, (i.block(rows), il.K))},
        {"y": (y, (i.block(rows), il.ALL))},
        params={"M": m, "K": k, "BM": rows, "BN": 1, "BK": block},
        reduction=il.Reduction(k, block),
    )


# ---------------------------------------------------------------- blur: the mean around a pixel


@triton.jit
def blur_tile(tile, x, y, M, N, H: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for dy in tl.static_range(-H, H + 1):
        for dx in tl.static_range(-W, W + 1):
            r, c = row + dy, column + dx
            inside = (r >= 0) & (r < M) & (c >= 0) & (c < N)
            total += tl.load(x + r * N + c, mask=inside, other=0.0).to(tl.float32)
    value = total / ((2 * H + 1) * (2 * W + 1))
    tl.store(y + row * N + column, value.to(y.dtype.element_ty), mask=(row < M) & (column < N))


def _blur(_: Array | None, regions: Regions, params: Params) -> dict[str, Array]:
    raise NotImplementedError("regions are clipped at the tensor's edge, and a tile does not know where it lies")


BLUR = il.Kernel("blur", il.Reference(_blur), lambda: il.TritonBody(blur_tile))


def blur(
    name: str,
    x: il.Tensor,
    y: il.Tensor,
    reach: tuple[int, int],
    halo: tuple[int, int],
    tile: tuple[int, int] = (16, 16),
) -> il.Op:
    """A mean over ``reach`` pixels to each side, declared to read ``halo`` pixels to each side."""
    (m, n), (bm, bn) = x.shape, tile
    i, j = il.axes(2)
    return BLUR.make_op(
        name,
        (-(-m // bm), -(-n // bn)),
        {"x": (x, (i.block(bm, halo[0]), j.block(bn, halo[1])))},
        {"y": (y, (i.block(bm), j.block(bn)))},
        params={"M": m, "N": n, "H": reach[0], "W": reach[1], "BM": bm, "BN": bn},
    )
