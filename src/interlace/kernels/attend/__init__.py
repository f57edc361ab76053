"""Decode attention: one new token per sequence over its cached keys and values (flash decoding).

A tile is one sequence, one KV head with its group of queries, and one of ``select_splits`` equal shares of the
positions that the sequence has *now*. With 700 cached positions, blocks of 64 and 4 splits, 11 blocks give shares
of 3:

    split     0         1         2         3
    cached    0:192     192:384   384:576   576:700
    new key                                 700 (this token's own, which is not read from the cache)

Each split writes an unnormalised sum of values, the largest exponent and the sum of weights; ``kernels/combine``
combines them. Exponents are in base 2: scores times log2(e) / sqrt(D). A split without positions writes 0, -infinity
and 0. If the cache is not split, a tile may write the finished heads instead.

Shares depend on lengths and the access map cannot, so every split is declared to read the whole cache of its head.
For a paged cache (``kernels/pages``), that is its head in all pages. If lengths differ widely, a table may assign
positions to tiles (``attend/shares``); a tile is then declared to read the positions of all sequences.
Source: Dao et al., Flash-Decoding for long-context inference, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, e, log2, sqrt

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, Affine, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.cuda import ATTEND_CUDA
from interlace.kernels.attend.shares import COLUMNS
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_eps,
    check_rows,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.pages import build_layout, check_page, gather_rows
from interlace.kernels.rope import apply_rope, clamp_position

#: Cached positions that a split processes at a time.
BLOCK = 64
#: Cost in seconds of combining the splits of a head in addition to attention itself, and cost of each split. Fitted
#: to steps of five models at batch 1 to 4 and 256 to 8192 positions, each with 3 to 5 split counts
#: (benchmarks/notes/decode.md).
JOIN_S, SPLIT_S = 1.6e-6, 0.12e-6
_MIN_ROWS = 16  # minimum extent of a Triton block product
_STEP = 8  # elements: rows of a cache begin at multiples of 16 bytes


def compute_scale(head_dim: int) -> float:
    """Return the factor that turns a score into an exponent of 2."""
    return log2(e) / sqrt(head_dim)


def compute_max_splits(sms: int, batch: int, kv_heads: int, capacity: int) -> int:
    """Return the most splits whose tiles fill the SMs once and each of which has a block of the cache."""
    return max(1, min(sms // (batch * kv_heads), -(-capacity // BLOCK)))


def select_splits(device: DeviceSpec, batch: int, kv_heads: int, capacity: int, row_bytes: int) -> int:
    """Return the number of splits that minimises the time of one step's attention, including the combination.

    An SM reads its split of a head's cache (B bytes in total) at the rate r of one SM. Combining s splits costs a
    fixed time plus a time per split. B / (s r) + s SPLIT_S has its minimum at s = sqrt(B / (r SPLIT_S)). If one SM
    reads the whole cache in no more time than the splits and their combination take, the cache is not split. Splits
    beyond the number whose SMs together read at 4/3 of the memory bandwidth read no faster.

    Args:
        device: device that runs the step.
        batch, kv_heads, capacity: extents of the caches.
        row_bytes: bytes of one position of one head, key and value.

    Returns:
        At most ``compute_max_splits``.
    """
    whole_s = capacity * row_bytes / device.sm_dram_bytes_per_s
    saturating = ceil(4 / 3 * device.dram_bytes_per_s / (device.sm_dram_bytes_per_s * batch * kv_heads))
    wanted = min(round(sqrt(whole_s / SPLIT_S)), saturating, compute_max_splits(device.sms, batch, kv_heads, capacity))
    if wanted < 2 or whole_s <= whole_s / wanted + wanted * SPLIT_S + JOIN_S:
        return 1
    return wanted


def compute_split_range(position: int, split: int, of: int, block: int = BLOCK) -> tuple[int, int]:
    """Return the cached positions of a split as a half-open range."""
    blocks = -(-position // block)
    each = -(-blocks // of) * block
    low = min(split * each, position)
    return low, min(low + each, position)


def _finish(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    group, d, eps = int(params["GROUP"]), int(params["D"]), float(params["EPS"])
    low, high, last, regions = _locate_share(regions, params, where)
    angles = regions["rope"][clamp_position(regions["position"], len(regions["rope"]))]
    q = apply_rope(regions["q"].reshape(group, d), angles, regions.get("q_norm"), eps)
    keys, values = (gather_rows(regions[name], regions.get("table"), low, high) for name in ("k_cache", "v_cache"))
    if last:
        own = apply_rope(regions["k"], angles, regions.get("k_norm"), eps)
        keys, values = np.concatenate([keys, own]), np.concatenate([values, regions["v"]])
    exponents = q @ keys.T * compute_scale(d)
    peak = exponents.max(axis=1, initial=-np.inf)
    weights = np.exp2(exponents - peak[:, None])
    shape, total = (1, 1, 1, group), weights.sum(axis=1)
    if params["WHOLE"]:
        return {"out": (weights @ values / total[:, None]).reshape(1, -1)}
    return {
        "out": (weights @ values).reshape(*shape, d),
        "peak": peak.reshape(shape),
        "total": total.reshape(shape),
    }


def _locate_share(regions: Regions, params: Params, where: tuple[int, ...]) -> tuple[int, int, bool, Regions]:
    """Return a tile's positions, whether they include this step's own, and the regions of its sequence alone."""
    capacity, of = len(regions["rope"]), int(params["SPLITS"])
    if "shares" not in regions:
        low, high = compute_split_range(
            clamp_position(regions["position"], capacity), where[2], of, int(params["BLOCK"])
        )
        return low, high, where[2] == of - 1, regions
    named, low, high = (int(n) for n in regions["shares"][0])
    b = min(max(named, 0), len(regions["position"]) - 1)
    cut = ["q", "k", "v", "position", *(("k_cache", "v_cache") if not params["PAGE"] else ("table",))]
    regions = {**regions, **{name: regions[name][b : b + 1] for name in cut}}
    at = clamp_position(regions["position"], capacity)
    most = 0 if named < 0 else at
    low = min(max(low, 0), most)
    high = min(max(high, low), most)
    return low, high, named >= 0 and high == at, regions


def _build_triton_body() -> TritonBody:
    from interlace.kernels.attend.triton import attend_tile

    return TritonBody(finish=attend_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return attend(name, **tensors, eps=params["EPS"], block=params["BLOCK"])  # type: ignore[arg-type]


def expect_last_row(capacity: int) -> Span:
    """Return the expected access to a row whose index is the position, in a cache or the RoPE table: the last row."""
    return Span(Affine(capacity - 1), Affine(capacity))


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: each split reads its share of a full cache, with a sequence's pages contiguous."""
    i, j, s = axes(3)
    capacity, of, page = (int(op.param(name)) for name in ("CAPACITY", "SPLITS", "PAGE"))
    share = -(-capacity // of)
    cached: tuple[Span, ...] = (i.block(1), j.block(1), s.block(share), ALL)
    if "BATCH" in op.parameters:
        # Caches (or pages) of all sequences are full, and each tile reads an equal part of them.
        cached = (ALL, j.block(1), i.block(-(-capacity // op.grid[0])), ALL)
        if page:
            cached = (i.block(max(int(op.param("PAGES")) // op.grid[0], 1)), j.block(1), ALL, ALL)
    elif page:
        own = -(-capacity // page)
        each = max(own // of, 1)
        first = i * own + s * each
        cached = (Span(first, first + each), j.block(1), ALL, ALL)
    return {"k_cache": cached, "v_cache": cached, "rope": (expect_last_row(capacity), ALL)}


ATTEND = Kernel(
    "attend",
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=ATTEND_CUDA,
    make=_make,
    expected_accesses=_expect_accesses,
)


def attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    rope: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    peak: Tensor | None = None,
    total: Tensor | None = None,
    *,
    table: Tensor | None = None,
    shares: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    block: int = BLOCK,
) -> Op:
    """Return the op: attention of B tokens at ``position`` (B,) over caches (B, KV heads, capacity, D), in splits.

    With a table the caches are paged: (pages, KV heads, page, D), see ``kernels/pages``. With ``shares``, each row of
    that table defines a split of any sequence; the outputs then have rows in the place of B, and 1 split.

    Args:
        q, k, v: projections of the tokens, (B, heads * D) and (B, KV heads * D), neither normalised nor rotated. These,
            ``position`` and finished heads may have more rows, which belong to other ops.
        position: index of each token in its sequence, int32; equals the number of cached positions that are read.
        rope: cosines and sines by position, (capacity, D) in float32; see ``kernels/rope``.
        out: sums of values, (B, KV heads, splits, group, D) in float32; or the finished heads, (B, heads * D),
            without ``peak`` and ``total`` and with one split.
        peak, total: largest exponents and sums of weights, (B, KV heads, splits, group) in float32.
        table: pages of each sequence (block table), (B, capacity / page), int32.
        shares: table of splits, (rows, 3), int32, see ``attend/shares``; in pages, each begins at a multiple of
            ``block``.
        q_norm, k_norm: weights of the RMS normalisation of every head with ``eps``, (D,), both or neither.
        block: cached positions processed at a time, a power of two of at least 16 that divides a page.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(k_cache, Tensor, f"op {name!r}", "k_cache")
    check_type(q, Tensor, f"op {name!r}", "q")
    check_type(out, Tensor, f"op {name!r}", "out")
    check_eps(name, eps)
    whole = peak is None and total is None
    require(
        len(k_cache.shape) == 4 and len(q.shape) == 2 and (whole or len(out.shape) == 5),
        f"op {name!r}: k_cache {k_cache} must be (batch, heads, capacity, D) or (pages, heads, page, D), q {q} "
        "(batch, heads * D), "
        f"and out {out} (batch, heads, splits, group, D) unless peak and total are left out",
    )
    layout = build_layout(name, k_cache, rope, table)
    b, heads, capacity, d = layout.batch, k_cache.shape[1], layout.capacity, k_cache.shape[3]
    of, group = (1, max(1, q.shape[1] // (heads * d))) if whole else out.shape[2:4]
    check_heads(name, d, {"q_norm": q_norm, "k_norm": k_norm})
    check_capacity(name, capacity)
    for arg, tensor, width in (("q", q, heads * group * d), ("k", k, heads * d), ("v", v, heads * d)):
        check_rows(name, arg, tensor, (b, width))
    check_argument(name, "v_cache", v_cache, k_cache.shape)
    check_type(position, Tensor, f"op {name!r}", "position")
    check_argument(name, "position", position, (max(position.shape[0], b),), int32)
    check_argument(name, "rope", rope, (capacity, d), fp32)
    if whole:
        check_rows(name, "out", out, (b, heads * group * d), q.dtype)
    else:
        n = b if shares is None else out.shape[0]
        check_argument(name, "out", out, (n, heads, of, group, d), fp32)
        check_argument(name, "peak", peak, (n, heads, of, group), fp32)
        check_argument(name, "total", total, (n, heads, of, group), fp32)
    if shares is not None:
        require(not whole and of == 1, f"op {name!r} has shares, and leaves parts; give out, peak and total one split")
        check_argument(name, "shares", shares, (out.shape[0], COLUMNS), int32)
    require((q_norm is None) == (k_norm is None), f"op {name!r}: give q_norm and k_norm, or neither")
    norms = {arg: norm for arg, norm in (("q_norm", q_norm), ("k_norm", k_norm)) if norm is not None}
    check_same_dtype(name, q, k, v, k_cache, v_cache, *norms.values())
    rows = max(_MIN_ROWS, next_power_of_2(group))
    check_block(f"op {name!r}", block, max(rows, next_power_of_2(d)))
    require(
        block >= _MIN_ROWS and block == next_power_of_2(block),
        f"op {name!r} takes {block} positions at a time; use a power of two of at least {_MIN_ROWS}",
    )
    check_page(name, layout.page, block)
    i, j, s = axes(3)
    own, part = i.block(1) if shares is None else ALL, (i.block(1), j.block(1), s.block(1), ALL)
    cached = (own if table is None else ALL, j.block(1), ALL, ALL)
    reads: dict[str, tuple[Tensor, tuple[Span, ...]]] = {
        "q": (q, (own, j.block(group * d))),
        "k": (k, (own, j.block(d))),
        "v": (v, (own, j.block(d))),
        "position": (position, (own,)),
        "rope": (rope, (ALL, ALL)),
        "k_cache": (k_cache, cached),
        "v_cache": (v_cache, cached),
        **({} if table is None else {"table": (table, (own, ALL))}),
        **({} if shares is None else {"shares": (shares, (i.block(1), ALL))}),
        **{arg: (norm, (ALL,)) for arg, norm in norms.items()},
    }
    writes: dict[str, tuple[Tensor, tuple[Span, ...]]] = {"out": (out, (i.block(1), j.block(group * d)))}
    if peak is not None and total is not None:
        writes = {"out": (out, (*part, ALL)), "peak": (peak, part), "total": (total, part)}
    return ATTEND.make_op(
        name,
        (b if shares is None else out.shape[0], heads, of),
        reads,
        writes,
        params={
            "HEADS": heads,
            **layout.params,
            **({} if shares is None else {"BATCH": b}),
            "SPLITS": of,
            "GROUP": group,
            "D": d,
            "ROWS": rows,
            "BLOCK": block,
            "WHOLE": whole,
            "EPS": eps,
            "num_warps": 4,
        },
        flops=4.0 * group * d * capacity * (1.0 / of if shares is None else b / out.shape[0]),
    )


def check_capacity(name: str, capacity: int) -> None:
    """Raise ShapeError if a cache has more positions than int32 can count."""
    require(
        capacity < 1 << 31,
        f"op {name!r} has a cache of {capacity} positions, which are counted in int32; use fewer than 2^31",
    )


def check_heads(name: str, d: int, norms: Mapping[str, Tensor | None]) -> None:
    """Raise unless heads of d elements can be rotated in halves and their normalisation weights have d elements."""
    require(
        d >= _MIN_ROWS and d % _STEP == 0,
        f"op {name!r} has heads of {d} elements; they must be a multiple of {_STEP} of at least {_MIN_ROWS}",
    )
    for arg, norm in norms.items():
        if norm is not None:
            check_argument(name, arg, norm, (d,))
