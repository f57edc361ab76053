"""Tokens drawn from logits, in three ops and the last one of an argmax.

A token is drawn from softmax(x / temperature) over the logits x of its sequence, of those alone that are at least

    the top_k-th largest of all, and
    the least t for which those above t have less than the share top_p of what is left then,

so that equal logits stay together. Drawing is by the Gumbel trick: where E are independent exponentials, the argmax of
x / temperature - log(E) has that distribution. E are made of the column, the position of the sequence and its key
(``philox``), and of nothing else. With temperature 0 the first of the largest logits is taken.

    outline   of each 64 columns the largest logit and the sum of weights exp((x - largest) / temperature)
    cutoff    of each sequence the least logit that may be drawn: bisection over the numbers of x's dtype, in which
              only those 64 columns are read again that have anything above the middle
    noisy     of some 2048 columns the largest x / temperature - log(E), and where; ``reduce_argmax`` ends it
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
    """The least logit of x (V,) that may be drawn; see ``cutoff``."""
    ranked = np.sort(x)[::-1]
    if temperature <= 0:
        return -np.inf
    least = ranked[top_k - 1] if 0 < top_k < len(x) else -np.inf
    if top_p < 1:
        weights = np.exp((ranked - ranked[0]) / temperature) * (ranked >= least)
        likelier = np.cumsum(weights) - weights
        # Those that equal the last one come behind it, and stay.
        least = ranked[np.flatnonzero(likelier < top_p * weights.sum()).max(initial=0)]
    return float(least)


def compute_gumbel_noise(columns: NDArray[Any], position: NDArray[Any], key: NDArray[Any]) -> Array:
    """-log(E) of columns at positions, which broadcast, for the sequence of a key (2,)."""
    seed, sequence = key.astype(np.int64)
    drawn = to_uniform(generate_words(columns.astype(np.int64), position.astype(np.int64), seed, sequence))
    return np.asarray(-np.log(-np.log1p(-drawn)))


def _compute_segment_stats(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    x, temperature = regions["x"], float(regions["temperature"][0])
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % SEGMENT)), constant_values=-np.inf).reshape(1, -1, SEGMENT)
    peak = padded.max(axis=2)
    above = padded - np.where(np.isneginf(peak), 0, peak)[:, :, None]
    weights = np.exp(above / temperature) if temperature > 0 else np.exp(above) > 0
    return {"peak": peak, "weight": weights.sum(axis=2, dtype=float)}


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
    """Of each 64 columns of x (B, V) the largest and a sum of weights: peak and weight (B, ceil(V / 64)) in float32.

    ``temperature`` (B,) is in float32; where it is 0, every number weighs 1. A tile has so many ``columns``, a multiple
    of 2048.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument that is none, shapes that do not match, other dtypes.
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
    """The least number of each row of x (B, V) that may be drawn: least (B,) in float32, minus infinity for all.

    Args:
        peak, weight: what ``segment_stats`` leaves.
        temperature, top_p: (B,) in float32; a top_p of 1 or more leaves all.
        top_k: (B,) in int32; 0 leaves all, and so does the number of columns.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument that is none, shapes that do not match, other dtypes.
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
        # Of the bits of a number in float32, those that tell numbers of x's dtype apart are searched.
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
    """The largest x / temperature - log(E) of every ``columns`` of x (B, V), and its column: best and at, as ``most``.

    Args:
        least: (B,) in float32, what ``cutoff`` leaves; smaller numbers of x are passed over.
        temperature: (B,) in float32; where it is 0, the largest x.
        position: (B,) in int32, of the token whose logits these are.
        key: (B, 2) in int32, a seed and the number of a sequence.
        columns: of a tile, a multiple of 2048. What is drawn does not depend on it.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument that is none, shapes that do not match, other dtypes.
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
