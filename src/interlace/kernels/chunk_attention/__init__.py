"""Attention of chunks of prompts: rows attend to the cached positions of their sequence, and causally to their chunk.

The last C rows of a step are tokens of prompts. Tokens of one sequence follow one another, at consecutive positions;
this module calls them a *segment*. ``sequence`` and ``position`` hold the sequence and the position of every row of
the step, and ``first`` holds for each row of the chunk the row of the chunk in which its segment begins. A step with 2
decode rows and a chunk of 6, of sequence 3 from position 70 on, of sequence 0 from its beginning, and padding:

    row of the step    0  1   2  3  4  5  6  7
    sequence           1  2   3  3  3  0  0 -1
    position          40 41  70 71 72  0  1  0
    first                     0  0  0  3  3  9
    sees cached              70 70 70  0  0  -      positions of its sequence, from 0 on
    and rows                  0  0  0  3  3  -      of the chunk
                                 1  1     4
                                    2

Rows whose ``first`` is greater than their own index, or whose sequence is none, hold no token: their output is 0. The
number of cached positions is the position of the segment's first row, so no tile reads what the step appends. Which
rows belong together is data, so one plan serves all prompts. Keys of the chunk are rotated already
(``kernels/rotate``), because many tiles read each of them; a tile normalises and rotates its own queries.

A tile is a block of ``m`` rows of one head. Tile 0 is the *last* block, which sees most of the chunk. Exponents are in
base 2, as in ``kernels/attend``. Source: Agrawal et al., Sarathi: Efficient LLM inference by piggybacking decodes with
chunked prefills, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.core.errors import DTypeError
from interlace.graph.access import ALL, Affine, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend import check_capacity, check_heads, compute_scale
from interlace.kernels.base import (
    Kernel,
    check_argument,
    check_block,
    check_eps,
    check_same_dtype,
    next_power_of_2,
    require,
)
from interlace.kernels.bodies import Array, BodyKind, Params, Reference, Regions, TritonBody
from interlace.kernels.causal_attention.tile import TILING, AttentionTile
from interlace.kernels.chunk_attention.cuda import MEGAKERNEL_BODY
from interlace.kernels.chunk_attention.tuning import MEGAKERNEL_TUNING, NAME
from interlace.kernels.pages import check_page, gather_rows
from interlace.kernels.rope import apply_rope


def _finish(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    rows, d, bm = (int(params[name]) for name in ("ROWS", "D", "BM"))
    q, k, v, rope = (regions[name] for name in ("q", "k", "v", "rope"))
    first, position, sequence = (regions[name].astype(np.int64) for name in ("first", "position", "sequence"))
    top = (-(-rows // bm) - 1 - where[0]) * bm
    out = np.zeros_like(q)
    for n in range(len(q)):
        row, begin = top + n, max(int(first[top + n]), 0)
        of = int(sequence[row])
        if begin > row or not 0 <= of < int(params["BATCH"]):
            continue
        cached = min(max(int(position[begin]), 0), int(params["CAPACITY"]))
        table = None if "table" not in regions else regions["table"][of : of + 1]
        caches = (regions[name] if table is not None else regions[name][of:] for name in ("k_cache", "v_cache"))
        old_keys, old_values = (gather_rows(cache, table, 0, cached) for cache in caches)
        keys, values = np.concatenate([old_keys, k[begin : row + 1]]), np.concatenate([old_values, v[begin : row + 1]])
        angles = rope[min(max(int(position[row]), 0), len(rope) - 1)]
        query = apply_rope(q[n], angles, regions.get("q_norm"), float(params["EPS"]))
        exponents = keys @ query * compute_scale(d)
        weights = np.exp2(exponents - exponents.max())
        out[n] = weights @ values / weights.sum()
    return {"out": out}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.chunk_attention.triton import chunk_attention_tile

    return TritonBody(finish=chunk_attention_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    tile = AttentionTile(*(params[name] for name in TILING))  # type: ignore[arg-type]
    return chunk_attention(name, **tensors, tile=tile, eps=float(params["EPS"]))


def _expect_accesses(op: Op) -> Mapping[str, tuple[Span, ...]]:
    """Return the expected access: one sequence, whose cache is full, with contiguous pages."""
    _, j, _ = axes(3)
    page, capacity = int(op.param("PAGE")), int(op.param("CAPACITY"))
    of = Span(Affine(0), Affine(max(capacity // page, 1) if page else 1))
    return dict.fromkeys(("k_cache", "v_cache"), (of, j.block(1), ALL, ALL))


CHUNK_ATTENTION = Kernel(
    NAME,
    Reference(_finish, needs_coords=True),
    _build_triton_body,
    megakernel=MEGAKERNEL_BODY,
    make=_make,
    tiling=TILING,
    tunings={BodyKind.MEGAKERNEL: MEGAKERNEL_TUNING},
    expected_accesses=_expect_accesses,
)


def chunk_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    position: Tensor,
    sequence: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    rope: Tensor,
    out: Tensor,
    *,
    q_norm: Tensor | None = None,
    eps: float = 1e-5,
    table: Tensor | None = None,
    tile: AttentionTile | None = None,
) -> Op:
    """Return the op in which the last C of R rows attend to the caches of their sequences and to their chunk.

    Args:
        q, v: queries and values of all rows, (R, heads * D) and (R, KV heads * D).
        k: rotated keys of the chunk, (C, KV heads * D).
        first: row of the chunk in which each row's segment begins, (C,), int32; see the module.
        position, sequence: position and sequence of all rows, (R,), int32.
        k_cache, v_cache: (B, KV heads, capacity, D), or (pages, KV heads, page, D) with a table (``kernels/pages``).
        rope: cosines and sines of each position (capacity, D), float32; see ``kernels/rope``.
        out: attention of all rows, (R, heads * D), of which the last C are written.
        q_norm, eps: weight (D,) and epsilon of the RMS norm of each query; None for no norm.
        table: pages of each sequence (block table), (B, capacity / page), int32.
        tile: tile shape; a page must be a multiple of the keys that it processes at a time.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    for arg, tensor, dimensions in (("q", q, 2), ("k", k, 2), ("k_cache", k_cache, 4)):
        check_type(tensor, Tensor, where, arg)
        require(len(tensor.shape) == dimensions, f"{where}: {arg} {tensor} must have {dimensions} dimensions")
    check_type(tile, (AttentionTile, type(None)), where, "tile", "AttentionTile(64, 64)")
    tile = tile or AttentionTile()
    pool, heads, of_cache, d = k_cache.shape
    batch, capacity, page, pages = pool, of_cache, 0, 0
    if table is not None:
        check_type(table, Tensor, where, "table")
        require(len(table.shape) == 2, f"{where}: table {table} must have two dimensions")
        check_argument(name, "table", table, table.shape, int32)
        batch, capacity, page, pages = table.shape[0], table.shape[1] * of_cache, of_cache, pool
    check_heads(name, d, {})
    check_capacity(name, capacity)
    (rows, wide), chunk = q.shape, k.shape[0]
    require(
        wide % (heads * d) == 0 and chunk <= rows,
        f"{where}: q {q} must be (R, heads * {d}), for each of {heads} heads of keys as many, and k {k} have R rows "
        "at most",
    )
    group = wide // (heads * d)
    check_argument(name, "k", k, (chunk, heads * d))
    check_type(rope, Tensor, where, "rope")
    check_argument(name, "rope", rope, (rope.shape[0], d), fp32)
    if q_norm is not None:
        check_argument(name, "q_norm", q_norm, (d,), q.dtype)
        check_eps(name, eps)
    check_argument(name, "v", v, (rows, heads * d))
    check_argument(name, "v_cache", v_cache, k_cache.shape)
    check_argument(name, "first", first, (chunk,), int32)
    check_argument(name, "position", position, (rows,), int32)
    check_argument(name, "sequence", sequence, (rows,), int32)
    check_argument(name, "out", out, (rows, wide))
    if not check_same_dtype(name, q, k, v, k_cache, v_cache, out).is_floating_point:
        raise DTypeError(f"{where}: q {q} must be of floating-point numbers")
    check_block(where, tile.m, max(next_power_of_2(d), tile.n))
    check_block(where, tile.n, next_power_of_2(d))
    check_page(name, page, tile.n)
    base, blocks = rows - chunk, -(-chunk // tile.m)
    i, j, g = axes(3)
    own = (blocks - 1 - i).block(tile.m)
    head = (j * group + g).block(d)
    seen = Span(Affine(0), own.hi)  # rows of the chunk up to the tile's last
    of_step = Span(Affine(base), own.hi + base)
    of_tile = Span(own.lo + base, own.hi + base)
    cached = (ALL, j.block(1), ALL, ALL)
    return CHUNK_ATTENTION.make_op(
        name,
        (blocks, heads, group),
        {
            "q": (q, (of_tile, head)),
            "k": (k, (seen, j.block(d))),
            "v": (v, (of_step, j.block(d))),
            "first": (first, (seen,)),
            "position": (position, (of_step,)),
            "sequence": (sequence, (of_step,)),
            "k_cache": (k_cache, cached),
            "v_cache": (v_cache, cached),
            "rope": (rope, (ALL, ALL)),
            **({} if q_norm is None else {"q_norm": (q_norm, (ALL,))}),
            **({} if table is None else {"table": (table, (ALL, ALL))}),
        },
        {"out": (out, (of_tile, head))},
        params={
            "ROWS": chunk,
            "BASE": base,
            "BATCH": batch,
            "CAPACITY": capacity,
            "PAGE": page,
            "PAGES": pages,
            "KV_HEADS": heads,
            "GROUP": group,
            "D": d,
            "EPS": eps,
            "ANGLES": rope.shape[0],
            **dict(tile.params),
        },
        flops=4.0 * d * tile.m * (capacity + chunk / 2),
    )
