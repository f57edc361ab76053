"""Single-head attention as separate ops: a matmul, a row softmax, a matmul.

Scores and probabilities are tensors of the graph's dtype and are rounded to it, as in a sequence of PyTorch ops.
PyTorch's fused attention kernel keeps scores in float32: in bf16 its error is less than half as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.row_tiles import select_tile_rows
from interlace.kernels.softmax import compute_softmax, softmax
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload


def attention(
    m: int, keys: int, head_dim: int, dtype: DType = bf16, tile: MatmulTile | None = None, rows: int = 1
) -> Graph:
    """Build ``out = softmax(q @ k.T / sqrt(head_dim)) @ v.T``, which stores the scores (m, keys).

    Inputs: ``q`` (m, head_dim), ``k`` (keys, head_dim), and ``v`` (head_dim, keys), one value per column.

    Args:
        m: number of queries.
        keys: number of keys and values.
        head_dim: elements of a query, key or value.
        dtype: dtype of all tensors.
        tile: tile of both matmuls.
        rows: rows per tile of the softmax.

    Raises:
        ArgumentError, ShapeError, DTypeError: extents, a dtype or tiles that the kernels do not support.
    """
    given = {"q": (m, head_dim), "k": (keys, head_dim), "v": (head_dim, keys)}
    made = {"scores": (m, keys), "shares": (m, keys), "out": (m, head_dim)}
    t = {name: Tensor(name, shape, dtype) for name, shape in (given | made).items()}
    ops = (
        matmul("query", t["q"], t["k"], t["scores"], tile=tile),
        softmax("softmax", t["scores"], t["shares"], scale=head_dim**-0.5, rows=rows),
        matmul("value", t["shares"], t["v"], t["out"], tile=tile),
    )
    return Graph("attention", (*t.values(),), ops, (*given,), ("out",))


@dataclass(frozen=True)
class Attention(Workload):
    """Attention of one head without a mask, by a product, a softmax and a product."""

    name: ClassVar[str] = "attention"
    presets: ClassVar[Presets] = {
        "small": {"keys": 200, "head_dim": 40},
        "sd-vae": {"m": 4096, "keys": 4096, "head_dim": 512},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "sd-vae"
    sizes: ClassVar[tuple[int, ...]] = (16, 256, 4096)
    weights: ClassVar[tuple[str, ...]] = ("k", "v")

    keys: Annotated[int, Option("Keys, and values.", least=1)]
    head_dim: Annotated[int, Option("Elements of a query, a key and a value.", least=1)]
    m: Annotated[int, Option("Queries.", least=1)] = 16
    dtype: DTypeField = bf16

    @property
    def title(self) -> str:
        return f"attention of {self.m} queries to {self.keys} keys of {self.head_dim}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 4.0 * self.m * self.keys * self.head_dim

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        of_matmul, rows = select_matmul_tile(self.m, device, tile), select_tile_rows(self.m, device.sms)
        return attention(self.m, self.keys, self.head_dim, self.dtype, of_matmul, rows)

    def make_inputs(self, seed: int) -> Inputs:
        """Draw all inputs from N(0, 1), so that scores have unit variance too."""
        random, graph = np.random.default_rng(seed), self.build_graph(CPU)
        shapes = {name: graph.tensor(name).shape for name in graph.inputs}
        return {n: round_to(random.standard_normal(shape, np.float32), self.dtype) for n, shape in shapes.items()}

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        if xp is np:
            return {"out": compute_softmax(q @ k.T, self.head_dim**-0.5) @ v.T}
        return {"out": xp.softmax(q @ k.T * self.head_dim**-0.5, -1) @ v.T}

    def list_alternatives(self, torch: Any) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Return attention in one kernel."""

        def attend_fused(t: Mapping[str, Any]) -> Mapping[str, Any]:
            of = torch.nn.functional.scaled_dot_product_attention
            return {"out": of(t["q"][None], t["k"][None], t["v"].T[None])[0]}

        return {"one kernel": attend_fused}
