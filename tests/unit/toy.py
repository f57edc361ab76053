"""A workload that the package does not know: all that another problem has to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.workloads.base import DTypeField, Option, Presets, Workload


@dataclass(frozen=True)
class Ladder(Workload):
    """Square matmuls, each of the result of the one before."""

    name: ClassVar[str] = "ladder"
    presets: ClassVar[Presets] = {"low": {"width": 64}, "high": {"width": 2048}}
    cpu_preset: ClassVar[str] = "low"
    gpu_preset: ClassVar[str] = "high"
    size: ClassVar[str] = "rows"
    sizes: ClassVar[tuple[int, ...]] = (16, 64)
    weights: ClassVar[tuple[str, ...]] = ("w0", "w1", "w2")

    width: Annotated[int, Option("Rows and columns of each weight.", least=1)]
    rows: Annotated[int, Option("Rows of x.", least=1)] = 32
    residual: Annotated[bool, Option("Add what goes into the last step to what comes out.")] = False
    dtype: DTypeField = bf16

    @property
    def flops(self) -> float:
        return 6.0 * self.rows * self.width**2

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        rows = [Tensor(name, (self.rows, self.width), self.dtype) for name in ("x", "h0", "h1", "out")]
        weights = [Tensor(name, (self.width, self.width), self.dtype) for name in self.weights]
        block = select_matmul_tile(self.rows, device, tile)
        steps = [
            matmul(f"step{i}", x, w, y, tile=block, residual=x if self.residual and i == 2 else None)
            for i, (x, w, y) in enumerate(zip(rows, weights, rows[1:], strict=False))
        ]
        return Graph("ladder", (*rows, *weights), tuple(steps), ("x", *self.weights), ("out",))

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        inner = tensors["x"] @ tensors["w0"].T @ tensors["w1"].T
        out = inner @ tensors["w2"].T
        return {"out": out + inner if self.residual else out}
