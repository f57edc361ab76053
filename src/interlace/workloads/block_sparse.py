"""A product with a block-sparse weight, whose table of blocks is data on the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.block_sparse import block_sparse_matmul
from interlace.kernels.matmul.tile import MatmulTile, TileShape
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload, sample_inputs

_SPARSITY = "Sparsity"
_LARGE = {"n": 14336, "k": 4096, "block": 128}


def block_sparse(
    m: int, n: int, k: int, count: int, block: int, dtype: DType = bf16, *, tile: MatmulTile | None = None
) -> Graph:
    """Build ``out = x @ weight.T`` for a weight (n, k) with ``count`` nonzero blocks; see ``kernels/block_sparse``.

    Inputs are x (m, k), blocks (count, block, block), and columns (count,) and rows (n / block + 1,) in int32.

    Raises:
        ArgumentError, ShapeError: invalid or inconsistent extents.
    """
    if n % block or k % block:
        raise ShapeError(
            f"a weight of {n} x {k} is not divided by blocks of {block} x {block}; use blocks that divide it"
        )
    t = {
        "x": Tensor("x", (m, k), dtype),
        "blocks": Tensor("blocks", (count, block, block), dtype),
        "columns": Tensor("columns", (count,), int32),
        "rows": Tensor("rows", (n // block + 1,), int32),
        "out": Tensor("out", (m, n), dtype),
    }
    op = block_sparse_matmul("product", **t, tile=tile)
    return Graph("block-sparse", tuple(t.values()), (op,), ("x", "blocks", "columns", "rows"), ("out",))


@dataclass(frozen=True)
class BlockSparse(Workload):
    """A product with a block-sparse weight: `out = x @ w.T`, with zero blocks at random.

    Raises:
        ShapeError: blocks do not divide the weight.
    """

    name: ClassVar[str] = "block-sparse"
    presets: ClassVar[Presets] = {
        **{f"zeros-{zeros}": {**_LARGE, "zeros": zeros} for zeros in (50, 80, 95)},
        "small": {"n": 160, "k": 128, "block": 32, "zeros": 70},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "zeros-80"
    sizes: ClassVar[tuple[int, ...]] = (16, 256, 4096)
    weights: ClassVar[tuple[str, ...]] = ("blocks",)

    n: Annotated[int, Option("Rows of the weight.", least=1)]
    k: Annotated[int, Option("Columns of the weight.", least=1)]
    block: Annotated[int, Option("Rows and columns of a block.", least=16, group=_SPARSITY)]
    zeros: Annotated[int, Option("Zero blocks in percent.", least=0, most=99, group=_SPARSITY)]
    m: Annotated[int, Option("Rows of x.", least=1)] = 16
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        if self.n % self.block or self.k % self.block:
            raise ShapeError(
                f"a weight of {self.n} x {self.k} is not divided by blocks of {self.block} x {self.block}; use blocks "
                "that divide it"
            )

    @property
    def title(self) -> str:
        blocks = f"{self.count} blocks of {self.block} x {self.block}, {self.zeros} % zeros"
        return f"block-sparse product, {self.m} x {self.n} x {self.k}, {blocks}, {self.dtype}"

    @property
    def count(self) -> int:
        """Number of nonzero blocks."""
        total = (self.n // self.block) * (self.k // self.block)
        return max(1, total - total * self.zeros // 100)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.count * self.block**2

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        own = None if tile is None else MatmulTile(tile.m, tile.n, tile.k)
        return block_sparse(self.m, self.n, self.k, self.count, self.block, self.dtype, tile=own)

    def make_inputs(self, seed: int) -> Inputs:
        return {**sample_inputs(self.build_graph(CPU), seed), **self.make_host_inputs(seed)}

    def make_host_inputs(self, seed: int) -> Inputs:
        """Draw the nonzero blocks without replacement; all other inputs are drawn on the device."""
        across, down = self.k // self.block, self.n // self.block
        random = np.random.default_rng((seed, self.zeros))
        drawn = np.sort(random.choice(across * down, self.count, replace=False))
        rows = np.searchsorted(drawn // across, np.arange(down + 1))
        return {"columns": (drawn % across).astype(np.float32), "rows": rows.astype(np.float32)}

    def get_deviation(self, tensor: Tensor) -> float:
        """Return the deviation of a dense weight of as many nonzero columns, so that results keep the size of x."""
        nonzero = self.count * self.block**2 / self.n
        return float(max(1.0, nonzero) ** -0.5) if tensor.name == "blocks" else 1.0

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": tensors["x"] @ self.expand(xp, tensors).T}

    def expand(self, xp: Any, t: Mapping[str, Any]) -> Any:
        """Return the dense weight (n, k) of a table of blocks without duplicates."""
        blocks, b = t["blocks"], self.block
        if xp is np:
            rows, columns = t["rows"].astype(np.int64), t["columns"].astype(np.int64)
            dense = np.zeros((self.n // b, self.k // b, b, b), blocks.dtype)
            dense[np.searchsorted(rows, np.arange(self.count), side="right") - 1, columns] = blocks
            return dense.swapaxes(1, 2).reshape(self.n, self.k)
        rows, columns = t["rows"].long(), t["columns"].long()
        dense = blocks.new_zeros((self.n // b, self.k // b, b, b))
        owner = xp.searchsorted(rows, xp.arange(self.count, device=rows.device), right=True) - 1
        return dense.index_put((owner, columns), blocks).transpose(1, 2).reshape(self.n, self.k)

    def list_alternatives(self, torch: Any) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Return the product with the weight as BSR, and with the dense weight, which the first call stores."""
        stored: dict[int, tuple[Any, Any]] = {}  # with its blocks, so that no other blocks get their address

        @torch.compiler.disable
        def get_dense(t: Mapping[str, Any]) -> Any:
            key = t["blocks"].data_ptr()
            if key not in stored:
                stored[key] = t["blocks"], self.expand(torch, t)
            return stored[key][1]

        def run_stored(t: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"out": torch.nn.functional.linear(t["x"], get_dense(t))}

        @torch.compiler.disable
        def run_bsr(t: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"out": torch.nn.functional.linear(t["x"], self.make_bsr(torch, t))}

        return {"dense weight": run_stored, "BSR": run_bsr}

    def make_bsr(self, torch: Any, t: Mapping[str, Any]) -> Any:
        """Return the weight as PyTorch's BSR tensor, over the same memory."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch calls its BSR tensors a beta
            rows, columns = t["rows"].int(), t["columns"].int()
            shape = self.n, self.k
            return torch.sparse_bsr_tensor(rows, columns, t["blocks"], size=shape, check_invariants=False)
