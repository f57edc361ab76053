"""CUDA source of attention of chunks in the megakernel; ``csrc/ops/chunk_attention.cuh`` says how it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interlace.core.dtypes import DType
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.base import require
from interlace.kernels.bodies import MegakernelTile
from interlace.kernels.causal_attention.cuda import build_tile, check_heads, count_warpgroups, encode_head_map
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelLoads, Tiling, Warpgroups

_NUMBERS = ("rows", "window", "kv_heads", "group", "batch", "capacity", "pages", "table_pages", "angles")
#: Operands of each op in a launch; those of causal attention and of the caches. Tensors of all rows of the step begin
#: at the chunk's first.
OPERANDS = Struct(
    "Operands",
    (
        *((name, TENSOR_MAP) for name in ("q", "k", "v", "k_cache", "v_cache")),
        *((name, "const int*") for name in ("first", "position", "sequence", "table")),
        ("rope", "const float*"),
        ("q_norm", "const ELEMENT*"),
        ("out", "ELEMENT*"),
        *((name, "int") for name in _NUMBERS),
        ("eps", "float"),
    ),
)


def _build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """Return how the tiles of an op are computed. Raises ShapeError if no warpgroups or products suit them."""
    head_dim, keys, page = (int(op.param(name)) for name in ("D", "BN", "PAGE"))
    tile = build_tile(op, parts, warpgroups)
    require(
        not page or page % keys == 0,
        f"op {op.name!r} has pages of {page} positions and takes {keys} at a time; use a multiple",
    )
    normed = str(any(access.arg == "q_norm" for access in op.accesses)).lower()
    return replace(tile, type=f"ChunkAttention<{head_dim}, {keys}, {page}, {normed}>")


def _pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """Return the operands of an op, given its tensors on the device by argument."""
    from interlace.kernels.cuda.launcher import encode_row_boxes

    base, keys = int(op.param("BASE")), int(op.param("BN"))
    boxes = {"q": int(op.param("BM")), "k": keys, "v": keys}
    of_chunk = {name: tensors[name][base:] for name in ("q", "v", "position", "sequence", "out")}
    table = tensors.get("table")
    return OPERANDS.pack(
        **{
            name: encode_head_map(of_chunk.get(name, tensors[name]), rows, int(op.param("D")), dtype)
            for name, rows in boxes.items()
        },
        # A matrix is a head of a sequence or page.
        **{name: encode_row_boxes(tensors[name], keys, dtype) for name in ("k_cache", "v_cache")},
        first=tensors["first"],
        position=of_chunk["position"],
        sequence=of_chunk["sequence"],
        table=table,
        rope=tensors["rope"],
        q_norm=tensors.get("q_norm"),
        out=of_chunk["out"],
        rows=int(op.param("ROWS")),
        window=int(op.param("ROWS")),
        kv_heads=int(op.param("KV_HEADS")),
        group=int(op.param("GROUP")),
        batch=int(op.param("BATCH")),
        capacity=int(op.param("CAPACITY")),
        pages=int(op.param("PAGES")),
        table_pages=0 if table is None else table.shape[1],
        angles=int(op.param("ANGLES")),
        eps=float(op.param("EPS")),
    )


MEGAKERNEL_BODY = MegakernelBody(
    include("ops/rows.cuh", "ops/causal_attention.cuh", "ops/panels.cuh", "ops/chunk_attention.cuh"),
    OPERANDS,
    _pack,
    Tiling(_build_tile, Warpgroups(count_required=count_warpgroups)),
    MegakernelLoads(
        pre_wait_inputs=("first", "position", "sequence", "table", "k_cache", "v_cache", "rope", "q_norm"),
        evict_first_inputs=("k_cache", "v_cache"),
    ),
    check=check_heads,
)
