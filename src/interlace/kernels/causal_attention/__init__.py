"""Causal attention of many tokens at once (prefill), over packed sequences of any lengths.

Rows of q, k, v and out are tokens. Sequences follow one another, with or without gaps. ``first`` holds for each token
the row in which its sequence begins. A token attends to the rows from there to itself, limited to the last ``window``
of them. Rows whose ``first`` is greater than their own index hold no token: they are not read, and their output is 0.
Three tokens of one sequence, two of another, and a row of padding:

    row      0 1 2 3 4 5
    first    0 0 0 3 3 9
    sees     0 0 0 3 3 -
               1 1   4
                 2

A tile is a block of ``m`` rows of one head. Which rows belong together is data, so one plan serves all lengths. The
access map declares that a block of rows [a, b) reads rows [a - window + 1, b), which is exact for one sequence. Tile
0 is the *last* block, which has the most keys, so long tiles run first and short ones fill the tail.

Keys and queries are used as given, so rotate them before. Exponents are in base 2, as in ``kernels/attend``. Source:
Dao, FlashAttention-2, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_int, check_type
from interlace.core.dtypes import int32
from interlace.core.errors import DTypeError
from interlace.graph.access import Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend import compute_scale
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_extents,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.causal_attention.cuda import MEGAKERNEL_BODY
from interlace.kernels.causal_attention.tile import MEGAKERNEL_TUNING, NAME, TILING, TRITON_TUNING, AttentionTile

__all__ = ["CAUSAL_ATTENTION", "AttentionTile", "causal_attention"]

_MIN_EXTENT = 16  # minimum extent of a Triton block product


def _finish(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    t, window, d, bm = (int(params[name]) for name in ("T", "WINDOW", "D", "BM"))
    q, k, v, first = (regions[name] for name in ("q", "k", "v", "first"))
    end = min((-(-t // bm) - where[0]) * bm, t)
    row, column = np.arange(end - len(q), end), np.arange(end - len(k), end)
    begin = np.maximum(np.maximum(first[-len(q) :], row - window + 1), 0)
    known = first <= column
    seen = (column <= row[:, None]) & (column >= begin[:, None]) & known
    live = begin <= row
    scores = np.where(live[:, None], q, 0.0) @ np.where(known[:, None], k, 0.0).T
    scores = np.where(seen, scores * compute_scale(d), -np.inf)
    peak = np.where(live, scores.max(axis=1), 0.0)
    weights = np.exp2(scores - peak[:, None])
    total = np.where(live, weights.sum(axis=1), 1.0)
    return {"out": weights @ np.where(known[:, None], v, 0.0) / total[:, None]}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.causal_attention.triton import causal_attention_tile

    return TritonBody(finish=causal_attention_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = AttentionTile(*(params[name] for name in TILING))  # type: ignore[arg-type]
    return causal_attention(name, **tensors, head_dim=params["D"], window=params["WINDOW"], tile=tile)  # type: ignore[arg-type]


CAUSAL_ATTENTION = Kernel(
    NAME,
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=MEGAKERNEL_BODY,
    make=_make,
    tiling=TILING,
    tunings={BodyKind.TRITON: TRITON_TUNING, BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
)


def causal_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    out: Tensor,
    *,
    head_dim: int,
    window: int | None = None,
    tile: AttentionTile | None = None,
) -> Op:
    """Return the op in which each of T rows attends to its sequence up to itself; see the module.

    Args:
        q, out: queries and output, (T, heads * head_dim).
        k, v: keys and values, (T, KV heads * head_dim); each KV head serves a group of consecutive query heads.
        first: row in which each row's sequence begins, (T,), int32; a value greater than the row's own index marks a
            row without a token. All rows from there on belong to the sequence.
        head_dim: elements of a head, a power of two of at least 16.
        window: upper bound of the rows that a token attends to, including its own; all by default. If no sequence is
            longer, it only changes the access map. FLOPs are counted for sequences of ``window`` rows.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    check_type(q, Tensor, where, "q")
    check_type(k, Tensor, where, "k")
    check_type(tile, (AttentionTile, type(None)), where, "tile", "AttentionTile(128, 64)")
    d, tile = check_int(head_dim, where, "head_dim"), tile or AttentionTile()
    require(
        d >= _MIN_EXTENT and d == next_power_of_2(d),
        f"{where} has heads of {d} elements; they must be a power of two of at least {_MIN_EXTENT}",
    )
    require(
        len(q.shape) == len(k.shape) == 2 and q.shape[1] % d == k.shape[1] % d == 0 and q.shape[1] % k.shape[1] == 0,
        f"{where}: q {q} must be (rows, heads * {d}), and k {k} (rows, heads of keys * {d}), each for as many of q",
    )
    (t, wide), kv_heads = q.shape, k.shape[1] // d
    group = wide // k.shape[1]
    check_argument(name, "k", k, (t, kv_heads * d))
    check_argument(name, "v", v, (t, kv_heads * d))
    check_argument(name, "first", first, (t,), int32)
    check_argument(name, "out", out, q.shape)
    if not check_same_dtype(name, q, k, v, out).is_floating_point:
        raise DTypeError(f"{where}: q {q} must be of floating-point numbers")
    window = t if window is None else min(check_int(window, where, "window"), t)
    require(window > 0, f"{where} has a window of {window} rows; use a positive number, or None for all")
    check_block(where, tile.m, max(d, tile.n))
    check_block(where, tile.n, d)
    check_extents(where, (t,), (max(tile.m, tile.n),))
    blocks = -(-t // tile.m)
    i, j, g = axes(3)
    rows = (blocks - 1 - i).block(tile.m)
    seen = Span(rows.lo - (window - 1), rows.hi)
    own: tuple[Span, ...] = (rows, (j * group + g).block(d))
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "q": (q, own),
        "k": (k, (seen, j.block(d))),
        "v": (v, (seen, j.block(d))),
        "first": (first, (seen,)),
    }
    return CAUSAL_ATTENTION.make_op(
        name,
        (blocks, kv_heads, group),
        reads,
        {"out": (out, own)},
        params={
            "T": t,
            "WINDOW": window,
            "KV_HEADS": kv_heads,
            "GROUP": group,
            "D": d,
            **dict(tile.params),
        },
        flops=2.0 * d * tile.m * (window + 1),  # for sequences of ``window`` rows: a row sees half of them
    )
