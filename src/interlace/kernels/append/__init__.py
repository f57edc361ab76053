"""Keys and values of a step's tokens into their caches, each at its position, keys as attention reads them.

Which row is written depends on the position, and access maps may not, so a tile is declared to update the whole cache
of its sequence in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.append.cuda import APPEND_TEXT
from interlace.kernels.attend import check_capacity, check_heads, usual_row
from interlace.kernels.base import Kernel, check_argument, check_eps, require, same_dtype
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.rope import placed, position_of


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    at = position_of(regions["position"], len(regions["rope"]))
    keys, values = regions["k_cache"].copy(), regions["v_cache"].copy()
    heads, d = int(params["HEADS"]), int(params["D"])
    angles, norm, eps = regions["rope"][at], regions.get("k_norm"), float(params["EPS"])
    for j, head in enumerate(np.split(regions["k"], heads, axis=1)):
        keys[0, j, at] = placed(head, angles, norm, eps)[0]
    values[0, :, at] = regions["v"].reshape(heads, d)
    return {"k_cache": keys, "v_cache": values}


def _triton() -> TritonBody:
    from interlace.kernels.append.triton import append_tile

    return TritonBody(finish=append_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return append(name, **tensors, eps=params["EPS"])  # type: ignore[arg-type]


def _usual(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """A row of each head's cache."""
    (i,) = axes(1)
    row = usual_row(int(op.param("CAPACITY")))
    cached = (i.block(1), ALL, row, ALL)
    return {"k_cache": cached, "v_cache": cached, "rope": (row, ALL)}


APPEND = Kernel("append", Reference(_finish), _triton, walk=APPEND_TEXT, make=_make, usual=_usual)


def append(
    name: str,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    rope: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Op:
    """``k_cache[b, h, position[b]] = placed(k[b, h])`` and the same of v as it is; arguments as of ``attend``.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument that is none, shapes that do not match, other dtypes.
    """
    check_type(k_cache, Tensor, f"op {name!r}", "k_cache")
    check_eps(name, eps)
    require(len(k_cache.shape) == 4, f"op {name!r}: k_cache {k_cache} must be (batch, heads, capacity, D)")
    b, heads, capacity, d = k_cache.shape
    check_heads(name, d, {"k_norm": k_norm})
    check_capacity(name, capacity)
    check_argument(name, "k", k, (b, heads * d))
    check_argument(name, "v", v, (b, heads * d))
    check_argument(name, "v_cache", v_cache, k_cache.shape)
    check_argument(name, "position", position, (b,), int32)
    check_argument(name, "rope", rope, (capacity, d), fp32)
    norms = {} if k_norm is None else {"k_norm": k_norm}
    same_dtype(name, k, v, k_cache, v_cache, *norms.values())
    (i,) = axes(1)
    cached = (i.block(1), ALL, ALL, ALL)
    caches: dict[str, tuple[Tensor, tuple[Span, ...]]] = {"k_cache": (k_cache, cached), "v_cache": (v_cache, cached)}
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "k": (k, (i.block(1), ALL)),
        "v": (v, (i.block(1), ALL)),
        "position": (position, (i.block(1),)),
        "rope": (rope, (ALL, ALL)),
        **{arg: (norm, (ALL,)) for arg, norm in norms.items()},
    }
    return APPEND.op(
        name,
        (b,),
        {**reads, **caches},
        caches,
        params={"HEADS": heads, "CAPACITY": capacity, "D": d, "EPS": eps, "num_warps": 1},
    )
