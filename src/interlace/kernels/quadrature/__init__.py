"""Adaptive quadrature: intervals are halved until the integral over them is accurate enough.

    refine    the integral over one interval of a level by Simpson's rule with ``points`` steps, and with half of
              them. If the two differ by more than 15 ``tolerance``, both halves are requested, and the interval itself
              contributes 0; else its value is the finer sum plus a 15th of the difference (Richardson; Lyness, 1969)
    total     the sum of all values

Level d has 2^d intervals of [0, 1]. Intervals of all levels are stored in sequence: interval n of level d is at
2^d - 1 + n, and its halves are at 2^(d + 1) - 1 + 2n and the next index. A grid of ``refine`` has every interval of its
level, and its ``when`` selects the requested ones, which are unknown before the run. On the last level an interval
contributes its value regardless of its error.

The integrand is a sum of peaks, w / (w^2 + (t - c)^2) for each centre c and width w. Peaks are high and narrow if w
is small. The integral of a peak is atan((1 - c) / w) + atan(c / w).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from interlace.core.arguments import check_int, check_type
from interlace.core.dtypes import fp32, int32
from interlace.core.errors import ArgumentError
from interlace.graph.access import ALL, Span, axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, check_argument, check_block, next_power_of_2, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.quadrature.cuda import REFINE_CUDA, TOTAL_CUDA

#: Upper bound of the levels: float32 cannot represent the narrower intervals of deeper levels near 1.
MAX_LEVELS = 20
_RICHARDSON = 15.0
#: An evaluation divides, takes a quotient and a remainder of indices, and counts as 5 FLOPs. The share was fitted to
#: times of ``spawning`` in ``dispatch-h200.json``: an interval of 17 x 256 evaluations takes 7 us on an SM of an H200.
_RATE_SHARE = 0.0077


def evaluate_integrand(centre: Array, width: Array, t: Array) -> Array:
    """Evaluate the integrand at each t."""
    return np.asarray((width / (width**2 + (t[..., None] - centre) ** 2)).sum(axis=-1))


def integrate_exactly(centre: Array, width: Array) -> float:
    """Return the exact integral over [0, 1]."""
    return float((np.arctan((1 - centre) / width) + np.arctan(centre / width)).sum())


def apply_simpson(values: Array) -> float:
    """Apply Simpson's rule over [0, 1] to values at both ends and at even steps between."""
    odd, even = values[1:-1:2].sum(), values[2:-1:2].sum()
    return float(values[0] + 4 * odd + 2 * even + values[-1]) / (3 * (len(values) - 1))


def _compute_refine(_: Array | None, regions: Regions, params: Params, where: tuple[int, ...]) -> Mapping[str, Array]:
    points, length = int(params["POINTS"]), 0.5 ** int(params["LEVEL"])
    t = (where[0] + np.arange(points + 1) / points) * length
    values = evaluate_integrand(regions["centre"], regions["width"], t)
    fine, coarse = length * apply_simpson(values), length * apply_simpson(values[::2])
    last = bool(params["LAST"])
    split = not last and abs(fine - coarse) > _RICHARDSON * float(params["TOLERANCE"])
    value = np.array([0.0 if split else fine + (fine - coarse) / _RICHARDSON])
    return {"value": value} if last else {"value": value, "more": np.full(2, float(split))}


def _compute_total(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"out": np.array([regions["value"].sum()])}


def _build_triton_body(which: str) -> TritonBody:
    from interlace.kernels.quadrature import triton

    return TritonBody(finish=getattr(triton, f"{which}_tile"))


def _make_refine(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    given = {name: params[name.upper()] for name in ("level", "points", "tolerance")}
    return refine(name, **tensors, **given)  # type: ignore[arg-type]


def _make_total(name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
    return total(name, **tensors)


REFINE = Kernel(
    "refine",
    Reference(_compute_refine, needs_coords=True),
    lambda: _build_triton_body("refine"),
    megakernel=REFINE_CUDA,
    make=_make_refine,
    rate_share=_RATE_SHARE,
)
TOTAL = Kernel(
    "total", Reference(_compute_total), lambda: _build_triton_body("total"), megakernel=TOTAL_CUDA, make=_make_total
)


def refine(
    name: str,
    centre: Tensor,
    width: Tensor,
    value: Tensor,
    *,
    wanted: Tensor | None = None,
    more: Tensor | None = None,
    level: int,
    points: int,
    tolerance: float,
) -> Op:
    """Return the op of one level of intervals; see the module.

    Args:
        centre, width: parameters of the peaks, (peaks,), float32.
        value: values of the intervals of all levels, (intervals,), float32.
        wanted: flags of the requested intervals, (intervals,), int32; None on level 0, whose one interval always
            runs.
        more: the same tensor, in which the next level's intervals are requested; None on the last level.
        level: index of the level.
        points: steps of Simpson's rule, a power of two of at least 4.
        tolerance: error tolerance of an interval.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    where = f"op {name!r}"
    for arg, tensor in (("centre", centre), ("width", width), ("value", value)):
        check_type(tensor, Tensor, where, arg)
    check_type(tolerance, float, where, "tolerance", "1e-6")
    if not 0 < tolerance < 1:
        raise ArgumentError(f"{where} has a tolerance of {tolerance}; use one between 0 and 1")
    require(
        0 <= check_int(level, where, "level") < MAX_LEVELS, f"{where} is of level {level}; use 0 to {MAX_LEVELS - 1}"
    )
    require(
        check_int(points, where, "points") >= 4 and points == next_power_of_2(points),
        f"{where} has {points} points; use a power of two of at least 4",
    )
    check_block(where, points)
    require(len(centre.shape) == len(value.shape) == 1, f"{where}: centre {centre} and value {value} must be vectors")
    (count,), (all_,) = centre.shape, value.shape
    check_argument(name, "centre", centre, (count,), fp32)
    check_argument(name, "width", width, (count,), fp32)
    check_argument(name, "value", value, (all_,), fp32)
    base, tiles = (1 << level) - 1, 1 << level
    halves = 2 * base + 1
    most = halves if more is None else halves + 2 * tiles
    require(all_ >= most, f"{where}: value {value} must hold the {most} intervals of its levels")
    require((wanted is None) == (level == 0), f"{where}: wanted says what runs of every level but 0, which has none")
    (i,) = axes(1)
    reads = {"centre": (centre, (ALL,)), "width": (width, (ALL,))}
    writes = {"value": (value, ((i + base).block(1),))}
    if wanted is not None:
        check_argument(name, "wanted", wanted, (all_,), int32)
        reads["wanted"] = (wanted, ((i + base).block(1),))
    if more is not None:
        check_argument(name, "more", more, (all_,), int32)
        writes["more"] = (more, (Span(i * 2 + halves, i * 2 + (halves + 2)),))
    return REFINE.make_op(
        name,
        (tiles,),
        reads,
        writes,
        params={
            "PEAKS": count,
            "LEVEL": level,
            "POINTS": points,
            "TOLERANCE": float(tolerance),
            "BASE": base,
            "LENGTH": 0.5**level,
            "LAST": more is None,
        },
        flops=5.0 * count * (points + 1),
        when="" if wanted is None else "wanted",
    )


def total(name: str, value: Tensor, out: Tensor) -> Op:
    """Return the op that sums value (n,) into ``out`` (1,), both float32, in one tile.

    Raises:
        ArgumentError, ShapeError, DTypeError: missing or non-tensor arguments, mismatched shapes, or wrong dtypes.
    """
    check_type(value, Tensor, f"op {name!r}", "value")
    require(len(value.shape) == 1, f"op {name!r}: value {value} must be a vector")
    check_argument(name, "value", value, value.shape, fp32)
    check_argument(name, "out", out, (1,), fp32)
    (n,) = value.shape
    block = next_power_of_2(n)
    check_block(f"op {name!r}", block)
    return TOTAL.make_op(name, (1,), {"value": (value, (ALL,))}, {"out": (out, (ALL,))}, params={"N": n, "BN": block})
