"""Grouped GEMM over experts: every tile of rows is multiplied by the weights of the expert that owns it.

    out[r] = x[r] @ weight[e].T                                 for all rows r of a tile that e owns
    out[r] = silu(x[r] @ gate[e].T) * (x[r] @ weight[e].T)      (gated)

Tiles without an expert become 0. The owner of a tile is data (``kernels/routing``), so the access map declares that a
tile may read any expert's weights. Sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import int32
from interlace.core.errors import DTypeError
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_extents, check_same_dtype, require
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.experts.cuda import MEGAKERNEL_BODY
from interlace.kernels.experts.tuning import MEGAKERNEL_TUNING, NAME
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import check_powers

_PARAMS = ("BM", "BN", "BK", "STAGES", "num_warps")


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    x, weight, expert = regions["x"], regions["weight"], int(regions["owner"][0])
    if not 0 <= expert < len(weight):
        return {"out": np.zeros((len(x), weight.shape[1]))}
    value = x @ weight[expert].T
    if "gate" in regions:
        gated = x @ regions["gate"][expert].T
        value = value * gated / (1 + np.exp(-gated))
    return {"out": value}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.experts.triton import expert_matmul_tile

    return TritonBody(finish=expert_matmul_tile, check=check_powers)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = MatmulTile(*(params[param] for param in _PARAMS))  # type: ignore[arg-type]
    return expert_matmul(name, **tensors, tile=tile)


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: as many experts as there are tiles, each read once from memory."""
    i, j = axes(2)
    own: tuple[Span, ...] = (i.block(1), j.block(int(op.param("BN"))), ALL)
    return {access.arg: own for access in op.reads if access.arg in ("weight", "gate")}


EXPERT_MATMUL = Kernel(
    NAME,
    Reference(_finish),
    _build_triton_body,
    megakernel=MEGAKERNEL_BODY,
    make=_make,
    tunings={BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
    expected_accesses=_expect_accesses,
)


def expert_matmul(
    name: str,
    x: Tensor,
    owner: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    gate: Tensor | None = None,
    tile: MatmulTile | None = None,
) -> Op:
    """Return the op that multiplies rows by the weights of their experts; see the module.

    Args:
        x: rows, (tiles * tile.m, K).
        owner: expert of each tile of rows, (tiles,), int32.
        weight, gate: weights of all experts, (E, N, K).
        out: products, (tiles * tile.m, N).
        tile: tile extents; ``swap_ab`` and ``prefetch_bytes`` are not supported.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    check_type(x, Tensor, where, "x")
    check_type(owner, Tensor, where, "owner")
    check_type(weight, Tensor, where, "weight")
    check_type(tile, (MatmulTile, type(None)), where, "tile", "il.MatmulTile(m, n, k)")
    tile = tile or MatmulTile()
    require(not (tile.swap_ab or tile.prefetch_bytes), f"{where}: {tile} swaps or prefetches, which experts do not")
    require(
        len(x.shape) == 2 and len(owner.shape) == 1 and len(weight.shape) == 3,
        f"{where}: x {x} must be (rows, K), owner {owner} (tiles,), and weight {weight} (E, N, K)",
    )
    k, (tiles,), (e, n, _) = x.shape[1], owner.shape, weight.shape
    rows = tiles * tile.m
    require(x.shape[0] == rows, f"{where}: x {x} must have {rows} rows, {tile.m} for each tile")
    check_argument(name, "owner", owner, (tiles,), int32)
    check_argument(name, "weight", weight, (e, n, k))
    check_argument(name, "out", out, (rows, n))
    check_extents(where, (rows, n, k), (tile.m, tile.n, tile.k))
    i, j = axes(2)
    row, column = i.block(tile.m), j.block(tile.n)
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "x": (x, (row, ALL)),
        "owner": (owner, (i.block(1),)),
        "weight": (weight, (ALL, column, ALL)),
    }
    if gate is not None:
        check_argument(name, "gate", gate, (e, n, k))
        reads["gate"] = (gate, (ALL, column, ALL))
    if not check_same_dtype(name, x, weight, out, *([] if gate is None else [gate])).is_floating_point:
        raise DTypeError(f"{where}: x {x} must be of floating-point numbers")
    return EXPERT_MATMUL.make_op(
        name,
        (tiles, -(-n // tile.n)),
        reads,
        {"out": (out, (row, column))},
        params={"E": e, "N": n, "K": k, **{p: v for p, v in tile.params if p in _PARAMS}},
        flops=2.0 * tile.m * tile.n * k * (1 if gate is None else 2),
    )
