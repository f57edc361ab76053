"""MoE routing on the device: three ops between a router's logits and the experts' matmuls.

    route    selects the ``chosen`` largest logits of a token as its experts, and their softmax as its weights;
             counts, for each block of tokens, how many tokens each expert gets
    place    assigns a row to every pair of a token and an expert: an expert's pairs are contiguous, in the order of
             their tokens, and begin at a multiple of ``rows``, so that a tile of rows belongs to one expert
    fill     computes the inverse: the token in each row, and the expert that owns each tile; -1 for none

The number of tiles depends on data, so a grid always has ``compute_max_tiles`` of them. Worked example, 5 tokens, 2
of 3 experts each, tiles of 4 rows: at most (10 - 3) // 4 + 3 = 4 tiles.

    experts    (0, 1) (0, 1) (0, 2) (0, 1) (0, 1)
    pairs      5 of expert 0, 4 of 1, 1 of 2: 2, 1 and 1 tiles
    place      (0, 8) (1, 9) (2, 12) (3, 10) (4, 11)
    token      0 1 2 3 | 4 - - - | 0 1 3 4 | 2 - - -
    owner      0       | 0       | 1       | 2

Experts out of range, as in a table that did not come from ``route``, get no row (-1), and nothing is read for them.
Ties between logits go to the first expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int, check_type
from interlace.core.dtypes import fp32, int32
from interlace.core.errors import RoutingError
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.routing.cuda import FILL_CUDA, PLACE_CUDA, ROUTE_CUDA

#: Arrays of integers, which regions also contain.
AnyArray = NDArray[Any]

#: Tokens of a tile of ``route`` and ``place``.
BLOCK = 32


def compute_max_tiles(tokens: int, chosen: int, experts: int, rows: int) -> int:
    """Return the upper bound of the tiles of ``rows`` rows: all are full except one per expert that has tokens."""
    pairs = tokens * chosen
    owners = min(experts, pairs)
    return (pairs - owners) // rows + owners


def check_experts(table: np.ndarray, experts: int) -> None:
    """Raise RoutingError if a routing table on the host has an expert out of range."""
    wrong = np.argwhere((table < 0) | (table >= experts))
    if len(wrong):
        token, which = (int(n) for n in wrong[0])
        raise RoutingError(
            f"token {token} goes to expert {int(table[token, which])}, and there are {experts}, from 0; "
            f"{len(wrong)} of {table.size} entries are out of range"
        )


def select_experts(logits: Array, chosen: int) -> tuple[AnyArray, Array, AnyArray]:
    """Return the experts and weights of each token, and how many tokens each expert gets (1, E)."""
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :chosen]
    best = np.take_along_axis(logits, experts, axis=1)
    weights = np.exp(best - best[:, :1])
    counts = np.bincount(experts.reshape(-1), minlength=logits.shape[1])[None, :]
    return experts, weights / weights.sum(axis=1, keepdims=True), counts


def compute_first_rows(counts: AnyArray, rows: int) -> AnyArray:
    """Return the row in which each expert's pairs begin."""
    tiles = -(-counts.sum(axis=0) // rows)
    return np.asarray((np.cumsum(tiles) - tiles) * rows)


def place_pairs(experts: AnyArray, following: AnyArray, count: int) -> AnyArray:
    """Return the row of each pair, given the first free row of each expert; -1 for experts out of range."""
    place, following = np.full(experts.shape, -1), following.copy()
    for at, expert in np.ndenumerate(experts):
        if 0 <= expert < count:
            place[at] = following[expert]
            following[expert] += 1
    return place


def find_tokens(place: AnyArray, first: int, rows: int) -> AnyArray:
    """Return the token in each of ``rows`` rows from ``first`` on, -1 for none."""
    row = place - first
    token = np.full(rows, -1)
    for t, k in np.argwhere((row >= 0) & (row < rows)):
        token[int(row[t, k])] = t
    return token


def _route(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    experts, weights, counts = select_experts(regions["logits"], int(params["CHOSEN"]))
    return {"experts": experts, "weights": weights, "counts": counts}


def _place(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    experts, counts = regions["experts"].astype(np.int64), regions["counts"]
    following = compute_first_rows(counts, int(params["ROWS"])) + counts[: where[0]].sum(axis=0)
    return {"place": place_pairs(experts, following, counts.shape[1])}


def _fill(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    rows = int(params["ROWS"])
    ends = np.cumsum(-(-regions["counts"].sum(axis=0) // rows))
    owner = int(np.searchsorted(ends, where[0], side="right"))
    token = find_tokens(regions["place"], where[0] * rows, rows)
    return {"token": token, "owner": np.array([owner if owner < len(ends) else -1])}


def _build_triton_body(which: str) -> TritonBody:
    from interlace.kernels.routing import triton

    return TritonBody(finish=getattr(triton, f"{which}_tile"))


def _make_route(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return route(name, **tensors)


def _make_place(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return place(name, **tensors, rows=params["ROWS"])  # type: ignore[arg-type]


def _make_fill(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return fill(name, **tensors)


ROUTE = Kernel("route", Reference(_route), lambda: _build_triton_body("route"), megakernel=ROUTE_CUDA, make=_make_route)
PLACE = Kernel(
    "place",
    Reference(_place, needs_coords=True),
    lambda: _build_triton_body("place"),
    megakernel=PLACE_CUDA,
    make=_make_place,
)
FILL = Kernel(
    "fill",
    Reference(_fill, needs_coords=True),
    lambda: _build_triton_body("fill"),
    megakernel=FILL_CUDA,
    make=_make_fill,
)


def route(name: str, logits: Tensor, experts: Tensor, weights: Tensor, counts: Tensor) -> Op:
    """Return the op that selects each token's experts and weights, and counts the tokens of each expert per block.

    Args:
        logits: router logits, (T, E) in float32.
        experts: experts of each token, (T, chosen), int32, the largest logit first.
        weights: expert weights, (T, chosen) in float32; those of a token sum to 1.
        counts: tokens of each expert, (blocks of 32 tokens, E), int32.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(logits, Tensor, f"op {name!r}", "logits")
    check_type(experts, Tensor, f"op {name!r}", "experts")
    require(
        len(logits.shape) == len(experts.shape) == 2 and experts.shape[1] <= logits.shape[1],
        f"op {name!r}: logits {logits} must be (tokens, experts), and experts {experts} (tokens, as many of them)",
    )
    (t, e), chosen = logits.shape, experts.shape[1]
    check_argument(name, "logits", logits, (t, e), fp32)
    check_argument(name, "experts", experts, (t, chosen), int32)
    check_argument(name, "weights", weights, (t, chosen), fp32)
    check_argument(name, "counts", counts, (-(-t // BLOCK), e), int32)
    check_block(f"op {name!r}", BLOCK, next_power_of_2(e))
    (i,) = axes(1)
    block = (i.block(BLOCK), ALL)
    return ROUTE.make_op(
        name,
        counts.shape[:1],
        {"logits": (logits, block)},
        {"experts": (experts, block), "weights": (weights, block), "counts": (counts, (i.block(1), ALL))},
        params={"T": t, "E": e, "CHOSEN": chosen, **_compute_blocks(e, chosen)},
        flops=float(BLOCK * e * chosen),
    )


def place(name: str, experts: Tensor, counts: Tensor, place: Tensor, rows: int) -> Op:
    """Return the op that assigns rows to pairs: place (T, chosen), int32, from the outputs of ``route``.

    Tiles have ``rows`` rows.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    t, chosen, e = _check_routing(name, "experts", experts, counts)
    check_argument(name, "place", place, (t, chosen), int32)
    require(check_int(rows, f"op {name!r}", "rows") > 0, f"op {name!r} has tiles of {rows} rows; use some")
    (i,) = axes(1)
    block = (i.block(BLOCK), ALL)
    return PLACE.make_op(
        name,
        counts.shape[:1],
        {"experts": (experts, block), "counts": (counts, (ALL, ALL))},
        {"place": (place, block)},
        params={
            "T": t,
            "E": e,
            "CHOSEN": chosen,
            "BLOCKS": counts.shape[0],
            "ROWS": rows,
            **_compute_blocks(e, chosen),
        },
    )


def fill(name: str, place: Tensor, counts: Tensor, token: Tensor, owner: Tensor) -> Op:
    """Return the op that finds the token of each row and the expert of each tile.

    ``token`` is (tiles * rows,), ``owner`` is (tiles,), both int32.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    t, chosen, e = _check_routing(name, "place", place, counts)
    check_type(owner, Tensor, f"op {name!r}", "owner")
    check_type(token, Tensor, f"op {name!r}", "token")
    require(
        len(owner.shape) == len(token.shape) == 1 and token.shape[0] % owner.shape[0] == 0,
        f"op {name!r}: token {token} must be (tiles * rows,), and owner {owner} (tiles,)",
    )
    (tiles,), rows = owner.shape, token.shape[0] // owner.shape[0]
    require(
        tiles >= compute_max_tiles(t, chosen, e, rows),
        f"op {name!r}: {t} tokens, {chosen} of {e} experts each, may fill {compute_max_tiles(t, chosen, e, rows)} "
        f"tiles of {rows} rows, and owner {owner} has {tiles}; give it as many",
    )
    check_argument(name, "owner", owner, (tiles,), int32)
    check_argument(name, "token", token, (tiles * rows,), int32)
    require(rows == next_power_of_2(rows), f"op {name!r} has tiles of {rows} rows; use a power of two")
    (i,) = axes(1)
    return FILL.make_op(
        name,
        (tiles,),
        {"place": (place, (ALL, ALL)), "counts": (counts, (ALL, ALL))},
        {"token": (token, (i.block(rows),)), "owner": (owner, (i.block(1),))},
        params={
            "T": t,
            "E": e,
            "CHOSEN": chosen,
            "BLOCKS": counts.shape[0],
            "ROWS": rows,
            **_compute_blocks(e, chosen),
        },
    )


def _check_routing(name: str, arg: str, pairs: Tensor, counts: Tensor) -> tuple[int, int, int]:
    """Check the tensors; return the number of tokens, experts per token, and experts."""
    check_type(pairs, Tensor, f"op {name!r}", arg)
    check_type(counts, Tensor, f"op {name!r}", "counts")
    require(len(pairs.shape) == len(counts.shape) == 2, f"op {name!r}: {arg} {pairs} and counts {counts} are matrices")
    (t, chosen), e = pairs.shape, counts.shape[1]
    check_argument(name, arg, pairs, (t, chosen), int32)
    check_argument(name, "counts", counts, (-(-t // BLOCK), e), int32)
    check_block(f"op {name!r}", BLOCK, next_power_of_2(e))
    return t, chosen, e


def _compute_blocks(experts: int, chosen: int) -> dict[str, int]:
    """Return the extents of Triton's blocks."""
    return {"BLOCK": BLOCK, "BE": next_power_of_2(experts), "BC": next_power_of_2(chosen), "num_warps": 4}
