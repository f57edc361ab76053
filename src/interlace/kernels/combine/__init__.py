"""Combine the splits of attention, as written by ``kernels/attend``, into one row of heads per token.

With exponents in base 2, peaks p_s, sums of weights t_s and sums of values o_s over splits s, and P the largest peak,

    out = sum_s 2^(p_s - P) o_s / sum_s 2^(p_s - P) t_s

The splits of a sequence are at its own index, or at any rows of a table (``attend/shares``). In the table form,
sequence b has the splits ``rows[first[b]:first[b + 1]]``, at least one (CSR layout).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, check_rows, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.combine.cuda import COMBINE_CUDA


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    parts, peak, total = (regions[name][0, 0] for name in ("parts", "peak", "total"))  # (splits, group, ...)
    if "rows" in regions:
        most = int(params["SPLITS"]) - 1
        low, high = (int(n) for n in regions["first"])
        low = min(max(low, 0), most)
        of = np.clip(regions["rows"][low : max(high, low + 1)].astype(np.int64), 0, most)
        parts, peak, total = (regions[name][of, 0, 0] for name in ("parts", "peak", "total"))
    weight = np.exp2(peak - peak.max(axis=0))
    joined = (weight[:, :, None] * parts).sum(axis=0) / (weight * total).sum(axis=0)[:, None]
    return {"out": joined.reshape(1, -1)}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.combine.triton import combine_tile

    return TritonBody(finish=combine_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return combine(name, **tensors)


COMBINE = Kernel("combine", Reference(_finish), _build_triton_body, megakernel=COMBINE_CUDA, make=_make)


def combine(
    name: str,
    parts: Tensor,
    peak: Tensor,
    total: Tensor,
    out: Tensor,
    *,
    first: Tensor | None = None,
    rows: Tensor | None = None,
) -> Op:
    """Return the op: out (B or more rows, heads * D) from parts (B, KV heads, splits, group, D), peak and total.

    Peak and total have the shape of parts without D; all three are in float32. With ``first`` (B + 1,) and ``rows``
    (R,), both int32, parts are (R, KV heads, 1, group, D). A tile is the query group of one KV head.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(parts, Tensor, f"op {name!r}", "parts")
    require(len(parts.shape) == 5, f"op {name!r}: parts {parts} must be (batch, heads of keys, splits, group, D)")
    b, heads, of, group, d = parts.shape
    n, most = b, of
    own: dict[str, tuple[Tensor, tuple[Span, ...]]] = {}
    i, j = axes(2)
    if first is not None or rows is not None:
        check_type(first, Tensor, f"op {name!r}", "first")
        assert first is not None
        require(of == 1 and len(first.shape) == 1, f"op {name!r}: with rows, parts {parts} must have one split each")
        n, most = first.shape[0] - 1, b
        require(n > 0, f"op {name!r} has first {first}, which is of no sequence; give it one number more")
        check_argument(name, "first", first, (n + 1,), int32)
        check_argument(name, "rows", rows, (b,), int32)
        own = {"first": (first, (Span(i, i + 2),)), "rows": (rows, (ALL,))}  # type: ignore[dict-item]
    require(d % 2 == 0, f"op {name!r} has heads of {d} elements; they must be an even number")
    check_argument(name, "parts", parts, parts.shape, fp32)
    check_argument(name, "peak", peak, (b, heads, of, group), fp32)
    check_argument(name, "total", total, (b, heads, of, group), fp32)
    check_rows(name, "out", out, (n, heads * group * d))
    height = next_power_of_2(most)
    check_block(f"op {name!r}", height, next_power_of_2(d))
    part = (ALL if own else i.block(1), j.block(1), ALL, ALL)
    return COMBINE.make_op(
        name,
        (n, heads),
        {"parts": (parts, (*part, ALL)), "peak": (peak, part), "total": (total, part), **own},
        {"out": (out, (i.block(1), j.block(group * d)))},
        params={"HEADS": heads, "SPLITS": most, "GROUP": group, "D": d, "ROWS": height, "num_warps": 4},
        flops=3.0 * (b / n if own else of) * group * d,
    )
