"""Append the keys and values of a step's tokens to their KV caches, with keys normalised and rotated for attention.

The row that is written depends on the position, and access maps cannot depend on data. A tile is therefore declared
to update the whole cache of its sequence in place. For paged caches (``kernels/pages``), a tile is one head of all
pages, for all sequences.
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
    if "table" in regions:
        return _finish_pages(regions, params)
    at = clamp_position(regions["position"], len(regions["rope"]))
    keys, values = regions["k_cache"].copy(), regions["v_cache"].copy()
    heads, d = int(params["HEADS"]), int(params["D"])
    angles, norm, eps = regions["rope"][at], regions.get("k_norm"), float(params["EPS"])
    for j, head in enumerate(np.split(regions["k"], heads, axis=1)):
        keys[0, j, at] = apply_rope(head, angles, norm, eps)[0]
    values[0, :, at] = regions["v"].reshape(heads, d)
    return {"k_cache": keys, "v_cache": values}


def _finish_pages(regions: Regions, params: Params) -> Mapping[str, Array]:
    """Append one head of all sequences to paged caches."""
    keys, values, rope = regions["k_cache"].copy(), regions["v_cache"].copy(), regions["rope"]
    for b in range(len(regions["position"])):
        at = clamp_position(regions["position"][b:], len(rope))
        found = find_row(regions["table"], b, at, len(keys), keys.shape[2])
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
    if page:
        cached = (Span(Affine(0), Affine(int(op.param("COUNT")))), i.block(1), expect_last_row(page), ALL)
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
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Op:
    """Return the op ``k_cache[b, h, position[b]] = apply_rope(k[b, h])``, and the same for v without rotation.

    Arguments are those of ``attend``.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(k_cache, Tensor, f"op {name!r}", "k_cache")
    check_eps(name, eps)
    require(len(k_cache.shape) == 4, f"op {name!r}: k_cache {k_cache} must be (batch, heads, capacity, D)")
    layout = build_layout(name, k_cache, rope, table)
    b, heads, capacity, d = layout.batch, k_cache.shape[1], layout.capacity, k_cache.shape[3]
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
    # Pages of any sequence may lie anywhere in the pool, so only heads separate the tiles.
    own, of = (i.block(1), ALL) if table is None else (ALL, i.block(d))
    cached = (own, ALL, ALL, ALL) if table is None else (ALL, i.block(1), ALL, ALL)
    caches: dict[str, tuple[Tensor, tuple[Span, ...]]] = {"k_cache": (k_cache, cached), "v_cache": (v_cache, cached)}
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "k": (k, (own, of)),
        "v": (v, (own, of)),
        "position": (position, (own,)),
        "rope": (rope, (ALL, ALL)),
        **({} if table is None else {"table": (table, (ALL, ALL))}),
        **{arg: (norm, (ALL,)) for arg, norm in norms.items()},
    }
    return APPEND.make_op(
        name,
        (b if table is None else heads,),
        {**reads, **caches},
        caches,
        params={
            "HEADS": heads,
            **layout.params,
            "COUNT": heads if table is None else b,
            "D": d,
            "EPS": eps,
            "num_warps": 1,
        },
    )
