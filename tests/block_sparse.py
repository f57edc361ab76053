"""Block-sparse products and tables for tests: valid tables, and tables with entries out of range."""

from __future__ import annotations

import numpy as np
import torch

import interlace as il
from interlace.kernels.block_sparse import block_sparse_matmul
from interlace.kernels.spin import spin

from .cases import TORCH

Tensors = dict[str, torch.Tensor]


def build_product(
    m: int,
    n: int,
    k: int,
    count: int,
    block: tuple[int, int],
    dtype: il.DType = il.bf16,
    tile: il.MatmulTile | None = None,
    *,
    writes_table: bool = False,
) -> il.Graph:
    """Return a product; ``writes_table``: ops of the graph write its table first, from ``given_columns`` and so on."""
    height, depth = block
    t = {
        "x": il.Tensor("x", (m, k), dtype),
        "blocks": il.Tensor("blocks", (count, height, depth), dtype),
        "columns": il.Tensor("columns", (count,), il.int32),
        "rows": il.Tensor("rows", (n // height + 1,), il.int32),
        "out": il.Tensor("out", (m, n), dtype),
    }
    product = block_sparse_matmul("product", **t, tile=tile)
    if not writes_table:
        return il.Graph("product", (*t.values(),), (product,), ("x", "blocks", "columns", "rows"), ("out",))
    given = {name: il.Tensor(f"given_{name}", t[name].shape, il.int32) for name in ("columns", "rows")}
    ops = (*(spin(f"write_{name}", tensor, t[name]) for name, tensor in given.items()), product)
    inputs = "x", "blocks", "given_columns", "given_rows"
    return il.Graph("written table", (*given.values(), *t.values()), ops, inputs, ("out",))


def build_chain(m: int, n: int, count: int, block: int, tile: il.MatmulTile) -> il.Graph:
    """Return two products with one square weight: ``out = (x @ weight.T) @ weight.T``."""
    graph = build_product(m, n, n, count, (block, block), tile=tile)
    t = {tensor.name: tensor for tensor in graph.tensors}
    h = il.Tensor("h", (m, n), il.bf16)
    weight = t["blocks"], t["columns"], t["rows"]
    first = block_sparse_matmul("first", t["x"], *weight, h, tile=tile)
    second = block_sparse_matmul("second", h, *weight, t["out"], tile=tile)
    return il.Graph("chain", (*graph.tensors, h), (first, second), graph.inputs, ("out",))


def draw_table(rows: int, across: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and pointers of ``count`` distinct blocks; the second block row has none."""
    random = np.random.default_rng(seed)
    places = [place for place in range(rows * across) if place // across != 1]
    drawn = np.sort(random.choice(places, count, replace=False))
    return drawn % across, np.searchsorted(drawn // across, np.arange(rows + 1))


def break_table(columns: np.ndarray, rows: np.ndarray, across: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the table with columns out of range and pointers that are out of range or decrease.

    One column times the depth of a block of 64 is column 1 of x in 32 bits.
    """
    columns, rows = columns.copy(), rows.copy()
    columns[:4] = across, -1, (1 << 26) + 1, -(1 << 31)
    rows[0], rows[-1] = -5, (1 << 31) - 1
    rows[2], rows[3] = rows[3], rows[2]
    return columns, rows


def make_inputs(graph: il.Graph, columns: np.ndarray, rows: np.ndarray, seed: int = 0, device: str = "cpu") -> Tensors:
    """Return random x and blocks, and the table."""
    random = torch.Generator().manual_seed(seed)
    given: Tensors = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        if tensor.dtype is il.int32:
            given[name] = torch.from_numpy((columns if name.endswith("columns") else rows).astype(np.int32))
        else:
            given[name] = torch.randn(tensor.shape, generator=random).to(TORCH[tensor.dtype.name])
    return {name: value.to(device) for name, value in given.items()}


def compute_exact(graph: il.Graph, given: Tensors) -> torch.Tensor:
    """Return the result of the reference in float64."""
    arrays = {name: value.double().cpu().numpy() for name, value in given.items()}
    return torch.from_numpy(il.ReferenceExecutor(il.build(graph, il.Schedule(1))).run(arrays)["out"])
