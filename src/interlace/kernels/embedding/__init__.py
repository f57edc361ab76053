"""Rows of a table by index: token embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import int32
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_same_dtype, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.embedding.cuda import EMBEDDING_CUDA
from interlace.kernels.folded_norm import COLUMNS, check_folded_outputs, sum_squares

_COLUMNS = 1024


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    table = regions["table"]
    # Clamp ids to the table: an id out of range must not read outside of it.
    at = np.clip(regions["tokens"], 0, len(table) - 1).astype(np.int64)
    rows = table[at]
    if "scale" not in regions:
        return {"out": rows}
    return {"out": rows, "scaled": rows * regions["scale"], "squares": sum_squares(rows, int(params["SQUARED"]))}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.embedding.triton import embedding_tile

    return TritonBody(finish=embedding_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return embedding(name, **tensors, columns=params["BN"])  # type: ignore[arg-type]


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: one row of the table per token, the row of the token's index."""
    i, j = axes(2)
    return {"table": (i.block(1), j.block(int(op.param("BN"))))}


EMBEDDING = Kernel(
    "embedding",
    Reference(_finish),
    _build_triton_body,
    megakernel=EMBEDDING_CUDA,
    make=_make,
    expected_accesses=_expect_accesses,
)


def embedding(
    name: str,
    tokens: Tensor,
    table: Tensor,
    out: Tensor,
    columns: int | None = None,
    *,
    scale: Tensor | None = None,
    scaled: Tensor | None = None,
    squares: Tensor | None = None,
) -> Op:
    """Return the op ``out = table[tokens]`` for tokens (B,), int32, table (V, H) and out (B, H); ids are clamped.

    Args:
        columns: columns of a tile, which is one row high.
        scale, scaled, squares: operands of a folded normalisation after the op (``kernels/folded_norm``), all or none:
            a scale (H,) that is read; out times the scale (B, H), and sums of squares of out, (B, ceil(H / 64)) or (B,
            ceil(H / 16)) in float32, which are written.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or mixed dtypes.
    """
    check_type(tokens, Tensor, f"op {name!r}", "tokens")
    check_type(table, Tensor, f"op {name!r}", "table")
    require(
        len(tokens.shape) == 1 and len(table.shape) == 2,
        f"op {name!r}: tokens {tokens} must have one dimension, and table {table} two",
    )
    (b,), (v, h) = tokens.shape, table.shape
    check_argument(name, "tokens", tokens, (b,), int32)
    check_argument(name, "out", out, (b, h))
    check_same_dtype(name, table, out)
    if columns is None:
        columns = max(min(_COLUMNS, next_power_of_2(h)), 1 if scale is None else COLUMNS)
    check_block(f"op {name!r}", columns)
    i, j = axes(2)
    spans = (i.block(1), j.block(columns))
    reads = {"tokens": (tokens, (i.block(1),)), "table": (table, (ALL, j.block(columns)))}
    writes = {"out": (out, spans)}
    leaves = check_folded_outputs(name, out, scale, scaled, squares, columns)
    if leaves is not None:
        reads["scale"] = (leaves[0], (j.block(columns),))
        writes |= {"scaled": (leaves[1], spans), "squares": (leaves[2], (i.block(1), j.block(columns // leaves[3])))}
    return EMBEDDING.make_op(
        name,
        (b, -(-h // columns)),
        reads,
        writes,
        params={"V": v, "H": h, "BN": columns, "SQUARED": 0 if leaves is None else leaves[3], "num_warps": 4},
    )
