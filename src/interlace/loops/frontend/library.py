"""Example kernels as plain loops: starting points for users, and the subjects of the golden files.

Each accepts any run-time extents unless stated otherwise; boxes clip tails. The streaming kernels process ``walk``
adjacent tiles per block: 10 tiles in walks of 4 make three blocks, the last of which has two steps. Short walks of many
blocks read memory in order, as the best plain kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.dtypes import DType, bf16, fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import Index, Var, ceil_div, minimum
from interlace.loops.ir.statements import Copy, LoopKernel, ReduceOp
from interlace.loops.ir.values import Coord, compare_less, rsqrt, select_larger, where
from interlace.loops.rewrite.circular import circular_buffer, lower


def _count_steps(tiles: Index, block: Var, walk: int) -> Index:
    """Return how many of ``tiles`` tiles block ``block`` processes."""
    return minimum(walk, tiles - block * walk)


def copy_1d(*, tile: int = 256, walk: int = 8, dtype: DType = fp32, by: Copy = Copy.TMA) -> LoopKernel:
    """Build ``y = x``, one dimension."""
    k = Builder("copy_1d")
    n = k.symbol("n")
    x, y = k.input("x", (n,), dtype), k.output("y", (n,), dtype)
    s = k.shared("s", (tile,), dtype)
    with k.block("b", ceil_div(n, tile * walk)) as b, k.serial("i", _count_steps(ceil_div(n, tile), b, walk)) as i:
        at = (b * walk + i) * tile
        k.load(s, x.at(at), by)
        k.store(y.at(at), s)
    return k.build_kernel()


def copy_2d(*, tile: tuple[int, int] = (16, 256), walk: int = 4, dtype: DType = fp32) -> LoopKernel:
    """Build ``y = x``, two dimensions, stored by TMA too: a block walks along its row panel."""
    k = Builder("copy_2d")
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), dtype), k.output("y", (m, n), dtype)
    s = k.shared("s", tile, dtype)
    with k.block("r", ceil_div(m, tile[0])) as r, k.block("b", ceil_div(n, tile[1] * walk)) as b:  # noqa: SIM117
        with k.serial("c", _count_steps(ceil_div(n, tile[1]), b, walk)) as c:
            at = (r * tile[0], (b * walk + c) * tile[1])
            k.load(s, x.at(*at))
            k.store(y.at(*at), s, Copy.TMA)
    return k.build_kernel()


def copy_3d(*, tile: tuple[int, int, int] = (2, 8, 64), dtype: DType = fp32) -> LoopKernel:
    """Build ``y = x``, three dimensions, stored by TMA too: a block per two outer tiles, a loop along the last axis."""
    k = Builder("copy_3d")
    d, m, n = k.symbol("d"), k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (d, m, n), dtype), k.output("y", (d, m, n), dtype)
    s = k.shared("s", tile, dtype)
    with k.block("bd", ceil_div(d, tile[0])) as bd, k.block("bm", ceil_div(m, tile[1])) as bm:  # noqa: SIM117
        with k.serial("i", ceil_div(n, tile[2])) as i:
            at = (bd * tile[0], bm * tile[1], i * tile[2])
            k.load(s, x.at(*at))
            k.store(y.at(*at), s, Copy.TMA)
    return k.build_kernel()


def transpose(*, tile: tuple[int, int] = (64, 32), walk: int = 4) -> LoopKernel:
    """Build ``y = x.T``, element by element: threads of a warp write adjacent elements and read a tile column.

    TMA permutes the 16-byte pieces of 128-byte rows, so that a column is spread over 8 times as many banks.
    """
    k = Builder("transpose", threads=256)
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), fp32), k.output("y", (n, m), fp32)
    rows, columns = tile
    s = k.shared("s", tile, fp32, swizzle_bytes=128 if columns * fp32.itemsize == 128 else 0)
    with k.block("r", ceil_div(m, rows)) as r, k.block("b", ceil_div(n, columns * walk)) as b:  # noqa: SIM117
        with k.serial("c", _count_steps(ceil_div(n, columns), b, walk)) as c:
            row, column = r * rows, (b * walk + c) * columns
            k.load(s, x.at(row, column))
            with k.thread("t", rows * columns) as t:
                k.store(y.at(column + t // rows, row + t % rows), s.at(t % rows, t // rows, shape=(1, 1)))
    return k.build_kernel()


def pointwise(*, tile: tuple[int, int] = (4, 256), walk: int = 2, plain: Copy = Copy.PLAIN) -> LoopKernel:
    """Build ``y = max(x * z + 1, 0)``: ``x`` by TMA, ``z`` to registers or, if not ``PLAIN``, to shared memory."""
    k = Builder("pointwise")
    m, n = k.symbol("m"), k.symbol("n")
    x, z = k.input("x", (m, n), fp32), k.input("z", (m, n), fp32)
    y = k.output("y", (m, n), fp32)
    x_s = k.shared("x_s", tile, fp32)
    z_t = k.register("z_r", tile, fp32) if plain is Copy.PLAIN else k.shared("z_s", tile, fp32)
    with k.block("r", ceil_div(m, tile[0])) as r, k.block("b", ceil_div(n, tile[1] * walk)) as b:  # noqa: SIM117
        with k.serial("c", _count_steps(ceil_div(n, tile[1]), b, walk)) as c:
            at = (r * tile[0], (b * walk + c) * tile[1])
            k.load(x_s, x.at(*at))
            k.load(z_t, z.at(*at), plain)
            k.assign(y.at(*at), select_larger(x_s * z_t + 1, 0))
    return k.build_kernel()


def reduce_inner(*, tile: tuple[int, int] = (8, 256), walk: int = 4, op: ReduceOp = ReduceOp.SUM) -> LoopKernel:
    """Reduce each row to its sum or maximum, a block per ``walk`` panels; columns past the end count as neutral."""
    k = Builder(f"row_{op.value}")
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), fp32), k.output("y", (m,), fp32)
    s = k.shared("s", tile, fp32)
    acc = k.register("acc", (tile[0], 1), fp32)
    start = 0.0 if op is ReduceOp.SUM else float("-inf")
    panels = ceil_div(m, tile[0])
    with k.block("b", ceil_div(m, tile[0] * walk)) as b, k.serial("r", _count_steps(panels, b, walk)) as r:
        row = (b * walk + r) * tile[0]
        k.assign(acc, start)
        with k.serial("c", ceil_div(n, tile[1])) as c:
            k.load(s, x.at(row, c * tile[1]))
            term = s.to_value() if op is ReduceOp.SUM else where(compare_less(Coord(1) + c * tile[1], n), s, start)
            k.reduce(acc, op, term, axes=(1,), shape=tile)
        k.store(y.at(row), acc)
    return k.build_kernel()


def reduce_outer(*, tile: tuple[int, int] = (16, 128)) -> LoopKernel:
    """Sum each column, one block per panel of columns."""
    k = Builder("column_sum")
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), fp32), k.output("y", (n,), fp32)
    s = k.shared("s", tile, fp32)
    acc = k.register("acc", (1, tile[1]), fp32)
    with k.block("b", ceil_div(n, tile[1])) as b:
        k.assign(acc, 0)
        with k.serial("r", ceil_div(m, tile[0])) as r:
            k.load(s, x.at(r * tile[0], b * tile[1]))
            k.reduce(acc, ReduceOp.SUM, s, axes=(0,), shape=tile)
        k.store(y.at(b * tile[1]), acc)
    return k.build_kernel()


def layer_norm(*, columns: int = 4096, chunk: int = 256, walk: int = 8, eps: float = 1e-5) -> LoopKernel:
    """Normalise rows of ``columns`` (layer norm), viewed as ``columns // chunk`` pieces so that TMA loads a whole row.

    The row is read from global memory once and stays in shared memory, where it is read three times.
    """
    k = Builder("layer_norm")
    m = k.symbol("m")
    pieces = columns // chunk
    x, y = k.input("x", (m, pieces, chunk), fp32), k.output("y", (m, pieces, chunk), fp32)
    weight, bias = k.input("weight", (pieces, chunk), fp32), k.input("bias", (pieces, chunk), fp32)
    row = k.shared("row", (1, pieces, chunk), fp32)
    mean, variance = k.register("mean", (1, 1, 1), fp32), k.register("variance", (1, 1, 1), fp32)
    with k.block("b", ceil_div(m, walk)) as b, k.serial("r", _count_steps(m, b, walk)) as r:
        at = b * walk + r
        k.load(row, x.at(at, 0, 0))
        k.assign(mean, 0)
        k.reduce(mean, ReduceOp.SUM, row, axes=(1, 2), shape=(1, pieces, chunk))
        k.assign(mean, mean / columns)
        k.assign(variance, 0)
        k.reduce(variance, ReduceOp.SUM, (row - mean) * (row - mean), axes=(1, 2), shape=(1, pieces, chunk))
        w, c = (t.at(0, 0, shape=(pieces, chunk)) for t in (weight, bias))
        k.assign(y.at(at, 0, 0), (row - mean) * rsqrt(variance / columns + eps) * w + c)
    return k.build_kernel()


def matmul(*, m: int = 128, n: int = 128, k: int = 64, threads: int = 256, dtype: DType = bf16) -> LoopKernel:
    """Build ``c = a @ b.T`` with ``a`` M x K, ``b`` N x K; a block per tile of ``m`` x ``n``, steps of ``k``."""
    return _build_matmul("matmul", (m, n, k), threads, dtype, bias=False)


def matmul_bias(*, m: int = 128, n: int = 128, k: int = 64, threads: int = 256, dtype: DType = bf16) -> LoopKernel:
    """Build ``c = a @ b.T + bias``: the bias is one row, broadcast over all rows of the tile."""
    return _build_matmul("matmul_bias", (m, n, k), threads, dtype, bias=True)


def _build_matmul(name: str, tile: tuple[int, int, int], threads: int, dtype: DType, *, bias: bool) -> LoopKernel:
    m, n, k = tile
    build = Builder(name, threads=threads)
    rows, columns, depth = (build.symbol(s) for s in ("rows", "columns", "depth"))
    a, b = build.input("a", (rows, depth), dtype), build.input("b", (columns, depth), dtype)
    row = build.input("bias", (columns,), fp32) if bias else None
    c = build.output("c", (rows, columns), dtype)
    swizzle = 128 if k * dtype.itemsize == 128 else 0
    a_s = build.shared("a_s", (m, k), dtype, swizzle_bytes=swizzle)
    b_s = build.shared("b_s", (n, k), dtype, swizzle_bytes=swizzle)
    acc = build.register("acc", (m, n), fp32)
    with build.block("i", ceil_div(rows, m)) as i, build.block("j", ceil_div(columns, n)) as j:
        build.assign(acc, 0)
        with build.serial("s", ceil_div(depth, k)) as s:
            build.load(a_s, a.at(i * m, s * k))
            build.load(b_s, b.at(j * n, s * k))
            build.matmul(acc, a_s, b_s)
        if row is not None:
            build.assign(acc, acc + row.at(j * n, shape=(n,)))
        build.store(c.at(i * m, j * n), acc)
    return build.build_kernel()


def matmul_batched(*, m: int = 128, n: int = 128, k: int = 64, threads: int = 256, dtype: DType = bf16) -> LoopKernel:
    """Build ``c[g] = a @ b[g].T`` for every ``g``: ``a`` is broadcast over the batch. Persistent blocks walk tiles."""
    build = Builder("matmul_batched", threads=threads)
    batch, rows, columns, depth = (build.symbol(s) for s in ("batch", "rows", "columns", "depth"))
    a, b = build.input("a", (rows, depth), dtype), build.input("b", (batch, columns, depth), dtype)
    c = build.output("c", (batch, rows, columns), dtype)
    swizzle = 128 if k * dtype.itemsize == 128 else 0
    a_s = build.shared("a_s", (m, k), dtype, swizzle_bytes=swizzle)
    b_s = build.shared("b_s", (n, k), dtype, swizzle_bytes=swizzle)
    acc = build.register("acc", (m, n), fp32)
    with build.block("i", ceil_div(rows, m)) as i, build.block("j", ceil_div(columns, n)) as j:  # noqa: SIM117
        with build.serial("g", batch) as g:
            build.assign(acc, 0)
            with build.serial("s", ceil_div(depth, k)) as s:
                build.load(a_s, a.at(i * m, s * k))
                build.load(b_s, b.at(g, j * n, s * k))
                build.matmul(acc, a_s, b_s)
            build.store(c.at(g, i * m, j * n), acc)
    return build.build_kernel()


@dataclass(frozen=True)
class Example:
    """A marked kernel and the form to rewrite it to."""

    kernel: LoopKernel
    warp_specialised: bool = False

    def rewrite(self) -> LoopKernel:
        """Return the kernel with its barriers."""
        return lower(self.kernel, warp_specialised=self.warp_specialised)


def build_examples() -> dict[str, Example]:
    """Return the golden files' kernels by name: each of the above, with mixed depths, distances, copies and forms."""
    tma_and_plain, tma_and_async = pointwise(), pointwise(plain=Copy.CP_ASYNC)
    two = {"a_s": 4, "b_s": 4}
    return {
        "copy_1d": Example(_mark_rings(copy_1d(), {"s": 4})),
        "copy_1d_plain": Example(_mark_rings(copy_1d(by=Copy.PLAIN), {"s": 2})),
        "copy_2d": Example(circular_buffer(copy_2d(), "s", 4, prefetch=2)),
        "copy_3d": Example(_mark_rings(copy_3d(), {"s": 2})),
        "transpose": Example(_mark_rings(transpose(), {"s": 4})),
        "pointwise": Example(_mark_rings(tma_and_plain, {"x_s": 4})),
        "pointwise_synchronous": Example(_mark_rings(tma_and_async, {"x_s": 4})),
        "pointwise_mixed": Example(_mark_rings(tma_and_async, {"x_s": 4, "z_s": 3})),
        "pointwise_mixed_specialised": Example(_mark_rings(tma_and_async, {"x_s": 4, "z_s": 3}), warp_specialised=True),
        "row_sum": Example(_mark_rings(reduce_inner(), {"s": 4})),
        "row_max": Example(_mark_rings(reduce_inner(op=ReduceOp.MAX), {"s": 3})),
        "column_sum": Example(_mark_rings(reduce_outer(), {"s": 8})),
        "layer_norm": Example(_mark_rings(layer_norm(), {"row": 3})),
        "matmul": Example(_mark_rings(matmul(), {"a_s": 4, "b_s": 3})),
        "matmul_specialised": Example(_mark_rings(matmul(), two), warp_specialised=True),
        "matmul_bias_specialised": Example(_mark_rings(matmul_bias(), two), warp_specialised=True),
        "matmul_batched_specialised": Example(_mark_rings(matmul_batched(), two), warp_specialised=True),
    }


def _mark_rings(kernel: LoopKernel, stages: dict[str, int]) -> LoopKernel:
    for tensor, depth in stages.items():
        kernel = circular_buffer(kernel, tensor, depth)
    return kernel
