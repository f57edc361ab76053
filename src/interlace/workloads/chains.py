"""The smallest graphs: one matmul, two copies, two matmuls."""

from __future__ import annotations

from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.copy import copy
from interlace.kernels.matmul import MatmulTile, matmul


def one_matmul(m: int, n: int, k: int, dtype: DType = bf16, tile: MatmulTile | None = None) -> Graph:
    """``out = x @ w.T`` for x of shape (m, k) and w (n, k)."""
    x, w, out = Tensor("x", (m, k), dtype), Tensor("w", (n, k), dtype), Tensor("out", (m, n), dtype)
    return Graph("one-matmul", (x, w, out), (matmul("matmul", x, w, out, tile=tile),), ("x", "w"), ("out",))


def two_copies(m: int, n: int, dtype: DType = bf16, tile: tuple[int, int] = (64, 64)) -> Graph:
    """``z = y = x`` for x of shape (m, n)."""
    x, y, z = (Tensor(name, (m, n), dtype) for name in "xyz")
    return Graph(
        "two-copies", (x, y, z), (copy("first", x, y, tile), copy("second", y, z, tile)), ("x",), ("z",)
    )


def two_matmuls(
    m: int,
    k: int,
    n: int,
    p: int,
    dtype: DType = bf16,
    first: MatmulTile | None = None,
    second: MatmulTile | None = None,
) -> Graph:
    """``out = (x @ a.T) @ b.T`` for x of shape (m, k), a (n, k), b (p, n)."""
    x, a, b = Tensor("x", (m, k), dtype), Tensor("a", (n, k), dtype), Tensor("b", (p, n), dtype)
    y, out = Tensor("y", (m, n), dtype), Tensor("out", (m, p), dtype)
    ops = (matmul("first", x, a, y, tile=first), matmul("second", y, b, out, tile=second))
    return Graph("two-matmuls", (x, a, b, y, out), ops, ("x", "a", "b"), ("out",))
