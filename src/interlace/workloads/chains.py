"""Smallest graphs: one matmul, two copies, two matmuls, and two matmuls with a normalisation between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.copy import copy
from interlace.kernels.folded_norm import COLUMNS, FINE, count_blocks
from interlace.kernels.matmul import MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.rms_norm import compute_rms_norm
from interlace.workloads.base import DTypeField, Option, Presets, Workload

_EPS = 1e-5
_FEW = 8  # rows


def one_matmul(m: int, n: int, k: int, dtype: DType = bf16, tile: MatmulTile | None = None) -> Graph:
    """Build ``out = x @ w.T`` for x of shape (m, k) and w (n, k)."""
    x, w, out = Tensor("x", (m, k), dtype), Tensor("w", (n, k), dtype), Tensor("out", (m, n), dtype)
    return Graph("one-matmul", (x, w, out), (matmul("matmul", x, w, out, tile=tile),), ("x", "w"), ("out",))


def two_copies(m: int, n: int, dtype: DType = bf16, tile: tuple[int, int] = (64, 64)) -> Graph:
    """Build ``z = y = x`` for x of shape (m, n)."""
    x, y, z = (Tensor(name, (m, n), dtype) for name in "xyz")
    return Graph("two-copies", (x, y, z), (copy("first", x, y, tile), copy("second", y, z, tile)), ("x",), ("z",))


def two_matmuls(
    m: int,
    k: int,
    n: int,
    p: int,
    dtype: DType = bf16,
    first: MatmulTile | None = None,
    second: MatmulTile | None = None,
) -> Graph:
    """Build ``out = (x @ a.T) @ b.T`` for x of shape (m, k), a (n, k), b (p, n)."""
    x, a, b = Tensor("x", (m, k), dtype), Tensor("a", (n, k), dtype), Tensor("b", (p, n), dtype)
    y, out = Tensor("y", (m, n), dtype), Tensor("out", (m, p), dtype)
    ops = (matmul("first", x, a, y, tile=first), matmul("second", y, b, out, tile=second))
    return Graph("two-matmuls", (x, a, b, y, out), ops, ("x", "a", "b"), ("out",))


def normed_matmuls(
    m: int,
    k: int,
    n: int,
    p: int,
    dtype: DType = bf16,
    first: MatmulTile | None = None,
    second: MatmulTile | None = None,
) -> Graph:
    """Build ``out = rms_norm(x @ a.T, gain) @ b.T`` for x of shape (m, k), a (n, k), gain (n,), b (p, n).

    The normalisation is fused into both matmuls (``kernels/folded_norm``); tiles of the first are a multiple of 16
    columns wide. Up to 8 rows, sums of squares cover that few columns, because the megakernel then has tiles that
    narrow.
    """
    first = first or MatmulTile()
    columns = FINE if first.n % COLUMNS or m <= _FEW else COLUMNS
    given = {"x": (m, k), "a": (n, k), "gain": (n,), "b": (p, n)}
    t = {name: Tensor(name, shape, dtype) for name, shape in given.items()}
    scaled, out = Tensor("scaled", (m, n), dtype), Tensor("out", (m, p), dtype)
    squares = Tensor("squares", (m, count_blocks(n, columns)), fp32)
    ops = (
        matmul("first", t["x"], t["a"], scale=t["gain"], scaled=scaled, squares=squares, tile=first),
        matmul("second", scaled, t["b"], out, x_squares=squares, eps=_EPS, tile=second),
    )
    return Graph("normed-matmuls", (*t.values(), scaled, squares, out), ops, (*given,), ("out",))


@dataclass(frozen=True)
class OneMatmul(Workload):
    """A matmul, ``out = x @ w.T`` with x of m x k and w of n x k."""

    name: ClassVar[str] = "one-matmul"
    presets: ClassVar[Presets] = {
        "small": {"m": 64, "n": 384, "k": 384},
        "4096-cubed": {"m": 4096, "n": 4096, "k": 4096},
        "8192-cubed": {"m": 8192, "n": 8192, "k": 8192},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "4096-cubed"
    sizes: ClassVar[tuple[int, ...]] = (16, 256, 4096)
    weights: ClassVar[tuple[str, ...]] = ("w",)

    m: Annotated[int, Option("Rows of x, and of the result.", least=1)]
    n: Annotated[int, Option("Rows of w, columns of the result.", least=1)]
    k: Annotated[int, Option("Columns of x and w: the reduction.", least=1)]
    dtype: DTypeField = bf16

    @property
    def title(self) -> str:
        return f"{self.m} x {self.n} x {self.k}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        return one_matmul(self.m, self.n, self.k, self.dtype, select_matmul_tile(self.m, device, tile))

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": tensors["x"] @ tensors["w"].T}


@dataclass(frozen=True)
class TwoMatmuls(Workload):
    """Two matmuls, the second of the first's result: ``out = (x @ a.T) @ b.T``."""

    name: ClassVar[str] = "two-matmuls"
    presets: ClassVar[Presets] = {
        "small": {"hidden": 384, "ffn": 1536},
        "large": {"hidden": 4096, "ffn": 14336},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "large"
    sizes: ClassVar[tuple[int, ...]] = (1, 16, 128, 1024)
    weights: ClassVar[tuple[str, ...]] = ("a", "b")

    hidden: Annotated[int, Option("Columns of x and of the result.", least=1)]
    ffn: Annotated[int, Option("Columns between the two matmuls.", least=1)]
    m: Annotated[int, Option("Rows.", least=1)] = 16
    dtype: DTypeField = bf16

    @property
    def title(self) -> str:
        return f"two matmuls, {self.m} rows, {self.hidden} to {self.ffn} to {self.hidden}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 4.0 * self.m * self.hidden * self.ffn

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        first = second = select_matmul_tile(self.m, device, tile)
        return two_matmuls(self.m, self.hidden, self.ffn, self.hidden, self.dtype, first, second)

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": (tensors["x"] @ tensors["a"].T) @ tensors["b"].T}


@dataclass(frozen=True)
class NormedMatmuls(TwoMatmuls):
    """Two matmuls with an RMS normalisation between, ``out = rms_norm(x @ a.T) @ b.T``."""

    name: ClassVar[str] = "normed-matmuls"

    @property
    def title(self) -> str:
        return super().title.replace("two matmuls", "two matmuls and a norm between")

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        first = second = select_matmul_tile(self.m, device, tile)
        return normed_matmuls(self.m, self.hidden, self.ffn, self.hidden, self.dtype, first, second)

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        x, a, gain, b = (tensors[name] for name in ("x", "a", "gain", "b"))
        if xp is np:
            return {"out": compute_rms_norm(x @ a.T, gain, _EPS) @ b.T}
        return {"out": xp.nn.functional.rms_norm(x @ a.T, (self.ffn,), gain, _EPS) @ b.T}


@dataclass(frozen=True)
class TwoCopies(Workload):
    """Two copies, ``z = y = x``."""

    name: ClassVar[str] = "two-copies"
    presets: ClassVar[Presets] = {"small": {"m": 256, "n": 256}, "large": {"m": 4096, "n": 4096}}
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "large"
    sizes: ClassVar[tuple[int, ...]] = (256, 4096)
    weights: ClassVar[tuple[str, ...]] = ("x",)
    blocks: ClassVar[int] = 8  # a copy keeps few bytes in flight, so it takes many blocks to fill the memory pipe

    m: Annotated[int, Option("Rows.", least=1)]
    n: Annotated[int, Option("Columns.", least=1)]
    dtype: DTypeField = bf16

    @property
    def title(self) -> str:
        return f"two copies of {self.m} x {self.n}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 0.0

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        tile = tile or TileShape(64, 64)
        return two_copies(self.m, self.n, self.dtype, (tile.m, tile.n))

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        copied = xp.copy if xp is np else xp.clone
        return {"z": copied(copied(tensors["x"]))}
