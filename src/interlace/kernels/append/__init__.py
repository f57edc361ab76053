"""Append the keys and values of a step's tokens to their KV caches, with keys normalised and rotated for attention.

The row that is written depends on the position, and access maps cannot depend on data. A tile is therefore declared
to update the whole cache of its sequence in place. For paged caches (``kernels/pages``), a tile is one head of all
pages, for all sequences. So it is for rows that name their sequences, of which one may have many:

    row         0  1  2  3  4
    sequence    0 -1  3  3 -1      rows 1 and 4 write nothing
    position   40  0 70 71  0
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, Affine, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.append.cuda import APPEND_CUDA
from interlace.kernels.attend import check_capacity, check_heads, expect_last_row
from interlace.kernels.base import Kernel, check_argument, check_eps, check_same_dtype, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.pages import build_layout, find_row
from interlace.kernels.rope import apply_rope, clamp_position


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    if "table" in regions or "sequence" in regions:
        return _finish_rows(regions, params)
    at = clamp_position(regions["position"], len(regions["rope"]))
    keys, values = regions["k_cache"].copy(), regions["v_cache"].copy()
    heads, d = int(params["HEADS"]), int(params["D"])
    angles, norm, eps = regions["rope"][at], regions.get("k_norm"), float(params["EPS"])
    for j, head in enumerate(np.split(regions["k"], heads, axis=1)):
        keys[0, j, at] = apply_rope(head, angles, norm, eps)[0]
    values[0, :, at] = regions["v"].reshape(heads, d)
    return {"k_cache": keys, "v_cache": values}


def _finish_rows(regions: Regions, params: Params) -> Mapping[str, Array]:
    """Append one head of all rows."""
    keys, values, rope = regions["k_cache"].copy(), regions["v_cache"].copy(), regions["rope"]
    table, rows = regions.get("table"), len(regions["position"])
    batch = int(params.get("BATCH", rows))
    for b in range(rows):
        at = clamp_position(regions["position"][b:], len(rope))
        of = b if "sequence" not in regions else int(regions["sequence"][b])
        if not 0 <= of < batch:
            continue
        found = (of, at) if table is None else find_row(table, of, at, len(keys), keys.shape[2])
        if found is not None:
            page, row = found
            keys[page, 0, row] = apply_rope(regions["k"][b], rope[at], regions.get("k_norm"), float(params["EPS"]))
            values[page, 0, row] = regions["v"][b]
    return {"k_cache": keys, "v_cache": values}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.append.triton import append_tile

    return TritonBody(finish=append_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return append(name, **tensors, eps=params["EPS"])  # type: ignore[arg-type]


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: one row of each head's cache, or one row of a page per sequence."""
    (i,) = axes(1)
    row, page = expect_last_row(int(op.param("CAPACITY"))), int(op.param("PAGE"))
    cached: tuple[Span, ...] = (i.block(1), ALL, row, ALL)
    if page or "BATCH" in op.parameters:
        count = int(op.param("COUNT" if page else "BATCH"))
        cached = (Span(Affine(0), Affine(count)), i.block(1), expect_last_row(page) if page else row, ALL)
    return {"k_cache": cached, "v_cache": cached, "rope": (row, ALL)}


APPEND = Kernel(
    "append",
    Reference(_finish),
    _build_triton_body,
    megakernel=APPEND_CUDA,
    make=_make,
    expected_accesses=_expect_accesses,
)


def append(
    name: str,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    rope: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    table: Tensor | None = None,
    sequence: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Op:
    """Return the op ``k_cache[b, h, position[b]] = apply_rope(k[b, h])``, and the same for v without rotation.

    Arguments are those of ``attend``. With ``sequence`` (R,), int32, the R rows of k, v and ``position`` are of the
    sequences that it names, in place of a row for each; a row of no sequence writes nothing.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(k_cache, Tensor, f"op {name!r}", "k_cache")
    check_eps(name, eps)
    require(len(k_cache.shape) == 4, f"op {name!r}: k_cache {k_cache} must be (batch, heads, capacity, D)")
    layout = build_layout(name, k_cache, rope, table)
    b, heads, capacity, d = layout.batch, k_cache.shape[1], layout.capacity, k_cache.shape[3]
    if sequence is not None:
        check_type(sequence, Tensor, f"op {name!r}", "sequence")
        b = sequence.shape[0]
        check_argument(name, "sequence", sequence, (b,), int32)
    check_heads(name, d, {"k_norm": k_norm})
    check_capacity(name, capacity)
    check_argument(name, "k", k, (b, heads * d))
    check_argument(name, "v", v, (b, heads * d))
    check_argument(name, "v_cache", v_cache, k_cache.shape)
    check_argument(name, "position", position, (b,), int32)
    check_argument(name, "rope", rope, (capacity, d), fp32)
    norms = {} if k_norm is None else {"k_norm": k_norm}
    check_same_dtype(name, k, v, k_cache, v_cache, *norms.values())
    (i,) = axes(1)
    # Pages of any sequence may lie anywhere in the pool, and rows be of any sequence, so only heads separate the tiles.
    by_sequence = table is None and sequence is None
    own, of = (i.block(1), ALL) if by_sequence else (ALL, i.block(d))
    cached = (own, ALL, ALL, ALL) if by_sequence else (ALL, i.block(1), ALL, ALL)
    caches: dict[str, tuple[Tensor, tuple[Span, ...]]] = {"k_cache": (k_cache, cached), "v_cache": (v_cache, cached)}
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "k": (k, (own, of)),
        "v": (v, (own, of)),
        "position": (position, (own,)),
        "rope": (rope, (ALL, ALL)),
        **({} if table is None else {"table": (table, (ALL, ALL))}),
        **({} if sequence is None else {"sequence": (sequence, (ALL,))}),
        **{arg: (norm, (ALL,)) for arg, norm in norms.items()},
    }
    return APPEND.make_op(
        name,
        (b if by_sequence else heads,),
        {**reads, **caches},
        caches,
        params={
            "HEADS": heads,
            **layout.params,
            "COUNT": heads if by_sequence else b,
            **({} if sequence is None else {"BATCH": layout.batch}),
            "D": d,
            "EPS": eps,
            "num_warps": 1,
        },
    )
