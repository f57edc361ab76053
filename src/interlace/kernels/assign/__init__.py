"""MoE routing of few tokens in one tile: the three ops of ``kernels/routing`` without the hand-offs between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.assign.cuda import ASSIGN_CUDA
from interlace.kernels.base import Kernel, check_argument, check_block, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.routing import compute_first_rows, compute_max_tiles, find_tokens, place_pairs, select_experts

#: Upper bound of the tokens of the tile: with more, one tile takes longer than the hand-offs.
MAX_TOKENS = 64


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    chosen, rows, tiles = (int(params[name]) for name in ("CHOSEN", "ROWS", "TILES"))
    experts, weights, counts = select_experts(regions["logits"], chosen)
    place = place_pairs(experts, compute_first_rows(counts, rows), len(counts[0]))
    owner = np.full(tiles, -1)
    for expert, (first, count) in enumerate(zip(compute_first_rows(counts, rows), counts[0], strict=True)):
        owner[first // rows : first // rows + -(-count // rows)] = expert
    return {"weights": weights, "place": place, "token": find_tokens(place, 0, tiles * rows), "owner": owner}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.assign.triton import assign_tile

    return TritonBody(finish=assign_tile)


def _make(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return assign(name, **tensors)


ASSIGN = Kernel("assign", Reference(_finish), _build_triton_body, megakernel=ASSIGN_CUDA, make=_make)


def assign(name: str, logits: Tensor, weights: Tensor, place: Tensor, token: Tensor, owner: Tensor) -> Op:
    """Return the op that computes each token's weights and rows, and the contents of each row and tile.

    Args:
        logits: (T, E) in float32, for up to ``MAX_TOKENS`` tokens.
        weights, place: (T, chosen), float32 and int32: expert weights, largest logit first, and the row of each pair.
        token, owner: (tiles * rows,) and (tiles,), int32: the token in each row and the expert of each tile.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    for arg, value in (("logits", logits), ("place", place), ("token", token), ("owner", owner)):
        check_type(value, Tensor, where, arg)
    require(
        len(logits.shape) == len(place.shape) == 2 and place.shape[1] <= logits.shape[1],
        f"{where}: logits {logits} must be (tokens, experts), and place {place} (tokens, as many of them)",
    )
    require(
        len(owner.shape) == len(token.shape) == 1 and token.shape[0] % owner.shape[0] == 0,
        f"{where}: token {token} must be (tiles * rows,), and owner {owner} (tiles,)",
    )
    (t, e), chosen, (tiles,) = logits.shape, place.shape[1], owner.shape
    rows = token.shape[0] // tiles
    require(t <= MAX_TOKENS, f"{where} has {t} tokens, and one tile takes {MAX_TOKENS}; use route, place and fill")
    require(
        tiles >= compute_max_tiles(t, chosen, e, rows),
        f"{where}: {t} tokens, {chosen} of {e} experts each, may fill {compute_max_tiles(t, chosen, e, rows)} tiles of "
        f"{rows} rows, and owner {owner} has {tiles}; give it as many",
    )
    check_argument(name, "logits", logits, (t, e), fp32)
    check_argument(name, "weights", weights, (t, chosen), fp32)
    check_argument(name, "place", place, (t, chosen), int32)
    check_argument(name, "token", token, (tiles * rows,), int32)
    check_argument(name, "owner", owner, (tiles,), int32)
    blocks = {
        "BLOCK": next_power_of_2(t),
        "BE": next_power_of_2(e),
        "BC": next_power_of_2(chosen),
        "BT": next_power_of_2(tiles),
    }
    check_block(where, blocks["BT"], blocks["BE"])
    check_block(where, blocks["BLOCK"], blocks["BE"])
    return ASSIGN.make_op(
        name,
        (1,),
        {"logits": (logits, (ALL, ALL))},
        {
            "weights": (weights, (ALL, ALL)),
            "place": (place, (ALL, ALL)),
            "token": (token, (ALL,)),
            "owner": (owner, (ALL,)),
        },
        params={"T": t, "E": e, "CHOSEN": chosen, "TILES": tiles, "ROWS": rows, **blocks, "num_warps": 4},
        flops=float(t * e * chosen),
    )
