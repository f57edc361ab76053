"""Independent matmuls, each too small to fill the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.workloads.base import DTypeField, Option, Presets, Workload


def dag(count: int, m: int, n: int, k: int, dtype: DType = bf16, tile: MatmulTile | None = None) -> Graph:
    """Build ``y0 = x @ w0.T``, ``y1 = x @ w1.T`` and so on, for x (m, k) and ``count`` weights (n, k)."""
    x = Tensor("x", (m, k), dtype)
    weights = tuple(Tensor(f"w{i}", (n, k), dtype) for i in range(count))
    outs = tuple(Tensor(f"y{i}", (m, n), dtype) for i in range(count))
    pairs = enumerate(zip(weights, outs, strict=True))
    ops = tuple(matmul(f"branches.{i}.matmul", x, w, y, tile=tile) for i, (w, y) in pairs)
    inputs = ("x", *(w.name for w in weights))
    return Graph("dag", (x, *weights, *outs), ops, inputs, tuple(y.name for y in outs))


@dataclass(frozen=True)
class Dag(Workload):
    """Independent matmuls of one input, ``y = x @ w.T`` for each of several w."""

    name: ClassVar[str] = "dag"
    presets: ClassVar[Presets] = {
        "small": {"count": 6, "m": 32, "n": 128, "k": 128},
        # 32 tiles of 128 x 128 each: a quarter of an H200's SMs
        "quarters": {"count": 64, "m": 1024, "n": 512, "k": 2048},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "quarters"
    size: ClassVar[str] = "count"
    sizes: ClassVar[tuple[int, ...]] = (8, 64)

    count: Annotated[int, Option("Matmuls.", least=1, most=10_000)]
    m: Annotated[int, Option("Rows of x, and of each result.", least=1)]
    n: Annotated[int, Option("Rows of each w, columns of its result.", least=1)]
    k: Annotated[int, Option("Columns of x and of each w: the reduction.", least=1)]
    dtype: DTypeField = bf16

    @property
    def weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of all w."""
        return tuple(f"w{i}" for i in range(self.count))

    @property
    def title(self) -> str:
        return f"{self.count} independent matmuls of {self.m} x {self.n} x {self.k}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 2.0 * self.count * self.m * self.n * self.k

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        return dag(self.count, self.m, self.n, self.k, self.dtype, select_matmul_tile(self.m, device, tile))

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"y{i}": tensors["x"] @ tensors[name].T for i, name in enumerate(self.weights)}
