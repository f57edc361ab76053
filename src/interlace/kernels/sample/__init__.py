"""Sampling of tokens from logits, in three ops followed by the last op of an argmax.

A token is sampled from softmax(x / temperature) over the logits x of its sequence, restricted to logits that are
at least

    the top_k-th largest of all, and
    the smallest t for which the logits above t hold less than the share top_p of the remaining probability,

so that equal logits are kept or removed together. Sampling uses the Gumbel-max trick: for independent exponential E,
the argmax of x / temperature - log(E) has that distribution. E is computed from the column, the position of the
sequence and its key (``philox``), and from nothing else. With temperature 0 the first of the largest logits is taken.

    segment_stats   for each 64 columns, the largest logit and the sum of weights exp((x - largest) / temperature);
                    at temperature 0 it reads nothing, and so does cutoff
    cutoff          for each sequence, the smallest logit that may be sampled: bisection over x's numbers, which
                    rereads only those 64-column segments that have a logit above the midpoint
    gumbel_argmax   for each 2048 or more columns, the largest x / temperature - log(E) and its column;
                    ``reduce_argmax`` reduces these
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_type
from interlace.core.dtypes import fp32, int32
from interlace.graph.access import ALL, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.argmax import COLUMNS
from interlace.kernels.base import Kernel, check_argument, check_block, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.sample.cuda import CUTOFF_CUDA, GUMBEL_ARGMAX_CUDA, SEGMENT_STATS_CUDA
from interlace.kernels.sample.philox import generate_words, to_uniform
from interlace.kernels.sample.segments import SEGMENT, count_segments


def find_cutoff(x: Array, temperature: float, top_k: int, top_p: float) -> float:
    """Return the smallest logit of x (V,) that may be sampled; see ``cutoff``."""
    ranked = np.sort(x)[::-1]
    if temperature <= 0:
        return -np.inf
    least = ranked[top_k - 1] if 0 < top_k < len(x) else -np.inf
    if top_p < 1:
        weights = np.exp((ranked - ranked[0]) / temperature) * (ranked >= least)
        likelier = np.cumsum(weights) - weights
        # Logits equal to the last one follow it in the ranking, and are kept.
        least = ranked[np.flatnonzero(likelier < top_p * weights.sum()).max(initial=0)]
    return float(least)


def compute_gumbel_noise(columns: NDArray[Any], position: NDArray[Any], key: NDArray[Any]) -> Array:
    """Return -log(E) for columns at positions, which broadcast, for the sequence of a key (2,)."""
    seed, sequence = key.astype(np.int64)
    drawn = to_uniform(generate_words(columns.astype(np.int64), position.astype(np.int64), seed, sequence))
    return np.asarray(-np.log(-np.log1p(-drawn)))


def _compute_segment_stats(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    x, temperature = regions["x"], float(regions["temperature"][0])
    if temperature <= 0:
        empty = np.zeros((1, count_segments(x.shape[1])))
        return {"peak": empty - np.inf, "weight": empty}
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % SEGMENT)), constant_values=-np.inf).reshape(1, -1, SEGMENT)
    peak = padded.max(axis=2)
    above = padded - np.where(np.isneginf(peak), 0, peak)[:, :, None]
    return {"peak": peak, "weight": np.exp(above / temperature).sum(axis=2)}


def _compute_cutoff(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    temperature, top_k, top_p = (float(regions[name][0]) for name in ("temperature", "top_k", "top_p"))
    return {"least": np.array([find_cutoff(regions["x"][0], temperature, int(top_k), top_p)])}


def _compute_gumbel_argmax(
    _: Array | None, regions: Regions, params: Params, where: tuple[int, ...]
) -> Mapping[str, Array]:
    x, temperature = regions["x"], float(regions["temperature"][0])
    first = where[1] * int(params["BN"])
    if temperature > 0:
        columns = first + np.arange(x.shape[1])
        scores: Array = x / temperature + compute_gumbel_noise(columns, regions["position"], regions["key"][0])
        x = np.where(x >= regions["least"][0], scores, -np.inf)
    at = x.argmax(axis=1, keepdims=True)
    return {"best": np.take_along_axis(x, at, axis=1), "at": first + at}


def _build_triton_body(name: str) -> TritonBody:
    from interlace.kernels.sample import triton

    return TritonBody(finish=getattr(triton, name))


def _make_segment_stats(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return segment_stats(name, **tensors, columns=params["BN"])  # type: ignore[arg-type]


def _make_cutoff(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return cutoff(name, **tensors)


def _make_gumbel_argmax(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return gumbel_argmax(name, **tensors, columns=params["BN"])  # type: ignore[arg-type]


SEGMENT_STATS = Kernel(
    "outline",
    Reference(_compute_segment_stats),
    lambda: _build_triton_body("outline_tile"),
    megakernel=SEGMENT_STATS_CUDA,
    make=_make_segment_stats,
)
CUTOFF = Kernel(
    "cutoff",
    Reference(_compute_cutoff),
    lambda: _build_triton_body("cutoff_tile"),
    megakernel=CUTOFF_CUDA,
    make=_make_cutoff,
)
GUMBEL_ARGMAX = Kernel(
    "noisy",
    Reference(_compute_gumbel_argmax, needs_coords=True),
    lambda: _build_triton_body("noisy_tile"),
    megakernel=GUMBEL_ARGMAX_CUDA,
    make=_make_gumbel_argmax,
)


def segment_stats(
    name: str, x: Tensor, temperature: Tensor, peak: Tensor, weight: Tensor, columns: int = COLUMNS
) -> Op:
    """Return the op that computes the largest logit and a sum of weights for each 64 columns of x (B, V).

    ``peak`` and ``weight`` are (B, ceil(V / 64)) in float32. ``temperature`` (B,) is in float32; where it is 0, no
    logit is read: peaks are minus infinity, and weights 0. A tile has ``columns`` columns, a multiple of 2048.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    b, v = _get_extents(name, x)
    _check_columns(name, columns)
    for arg, tensor in (("peak", peak), ("weight", weight)):
        check_argument(name, arg, tensor, (b, count_segments(v)), fp32)
    check_argument(name, "temperature", temperature, (b,), fp32)
    i, j = axes(2)
    one = (i.block(1), j.block(columns // SEGMENT))
    return SEGMENT_STATS.make_op(
        name,
        (b, -(-v // columns)),
        {"x": (x, (i.block(1), j.block(columns))), "temperature": (temperature, (i.block(1),))},
        {"peak": (peak, one), "weight": (weight, one)},
        params={"N": v, "BN": columns, "SEGMENTS": count_segments(v), "num_warps": 8},
        flops=4.0 * columns,
    )


def cutoff(
    name: str,
    x: Tensor,
    peak: Tensor,
    weight: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    least: Tensor,
) -> Op:
    """Return the op that finds the smallest logit of each row of x (B, V) that may be sampled.

    ``least`` is (B,) in float32; minus infinity admits all logits.

    Args:
        peak, weight: outputs of ``segment_stats``.
        temperature, top_p: sampling parameters, (B,) in float32; a top_p of 1 or more keeps all logits.
        top_k: number of logits to keep, (B,) in int32; 0 keeps all, and so does the number of columns.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    b, v = _get_extents(name, x)
    of = count_segments(v)
    for arg, tensor in (("peak", peak), ("weight", weight)):
        check_argument(name, arg, tensor, (b, of), fp32)
    for arg, tensor in (("temperature", temperature), ("top_p", top_p), ("least", least)):
        check_argument(name, arg, tensor, (b,), fp32)
    check_argument(name, "top_k", top_k, (b,), int32)
    check_block(f"op {name!r}", next_power_of_2(of))
    (i,) = axes(1)
    row, one = (i.block(1), ALL), (i.block(1),)
    return CUTOFF.make_op(
        name,
        (b,),
        {
            "x": (x, row),
            "peak": (peak, row),
            "weight": (weight, row),
            "temperature": (temperature, one),
            "top_k": (top_k, one),
            "top_p": (top_p, one),
        },
        {"least": (least, one)},
        # The search covers those bits of a float32 number that distinguish numbers of x's dtype.
        params={
            "N": v,
            "SEGMENTS": of,
            "BLOCK": next_power_of_2(of),
            "LOW": 24 + int(log2(x.dtype.epsilon)),
            "num_warps": 8,
        },
        flops=8.0 * v,
    )


def gumbel_argmax(
    name: str,
    x: Tensor,
    least: Tensor,
    temperature: Tensor,
    position: Tensor,
    key: Tensor,
    best: Tensor,
    at: Tensor,
    columns: int = COLUMNS,
) -> Op:
    """Return the op that finds the largest x / temperature - log(E) of every ``columns`` columns of x (B, V).

    The maximum and its column go to ``best`` and ``at``, as in ``block_argmax``.

    Args:
        least: output of ``cutoff``, (B,) in float32; smaller logits are skipped.
        temperature: sampling temperature, (B,) in float32; where it is 0, the largest x is taken.
        position: position of the token that the logits belong to, (B,) in int32.
        key: seed and index of a sequence, (B, 2) in int32.
        columns: columns of a tile, a multiple of 2048. The sampled token does not depend on it.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    b, v = _get_extents(name, x)
    _check_columns(name, columns)
    tiles = -(-v // columns)
    for arg, tensor in (("least", least), ("temperature", temperature)):
        check_argument(name, arg, tensor, (b,), fp32)
    check_argument(name, "position", position, (b,), int32)
    check_argument(name, "key", key, (b, 2), int32)
    check_argument(name, "best", best, (b, tiles), fp32)
    check_argument(name, "at", at, (b, tiles), int32)
    i, j = axes(2)
    of, one = (i.block(1),), (i.block(1), j.block(1))
    return GUMBEL_ARGMAX.make_op(
        name,
        (b, tiles),
        {
            "x": (x, (i.block(1), j.block(columns))),
            "least": (least, of),
            "temperature": (temperature, of),
            "position": (position, of),
            "key": (key, (i.block(1), ALL)),
        },
        {"best": (best, one), "at": (at, one)},
        params={"N": v, "BN": columns, "TILES": tiles, "num_warps": 8},
        flops=16.0 * columns,
    )


def _check_columns(name: str, columns: int) -> None:
    check_block(f"op {name!r}", columns)
    require(columns % COLUMNS == 0, f"op {name!r} has tiles of {columns} columns; use a multiple of {COLUMNS}")


def _get_extents(name: str, x: Tensor) -> tuple[int, ...]:
    check_type(x, Tensor, f"op {name!r}", "x")
    require(len(x.shape) == 2, f"op {name!r}: x {x} must be a matrix")
    require(x.dtype.is_floating_point, f"op {name!r}: x {x} has no numbers to draw by; give logits")
    return x.shape
