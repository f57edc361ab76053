"""Adaptive quadrature, a workload that discovers its work while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int, format_value
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import fp32, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul.tile import TileShape
from interlace.kernels.quadrature import MAX_LEVELS, refine, total
from interlace.workloads.base import Inputs, Option, Presets, Workload


def quadrature(levels: int, peaks: int, points: int, tolerance: float) -> Graph:
    """Build the integral of a sum of peaks over [0, 1], ``out``: intervals are halved up to ``levels`` - 1 times.

    Raises:
        ArgumentError, ShapeError: invalid numbers; see ``kernels.quadrature.refine``.
    """
    if not 1 <= check_int(levels, "quadrature", "levels") <= MAX_LEVELS:
        last = format_value(levels - 1)
        raise ShapeError(f"quadrature has level {last}; use 0 to {MAX_LEVELS - 1}, which float32 tells apart")
    count = (1 << levels) - 1
    centre, width = Tensor("centre", (peaks,), fp32), Tensor("width", (peaks,), fp32)
    wanted, value, out = Tensor("wanted", (count,), int32), Tensor("value", (count,), fp32), Tensor("out", (1,), fp32)
    ops = tuple(
        refine(
            f"level{level}",
            centre,
            width,
            value,
            wanted=wanted if level else None,
            more=wanted if level < levels - 1 else None,
            level=level,
            points=points,
            tolerance=tolerance,
        )
        for level in range(levels)
    )
    tensors = centre, width, *([wanted] if levels > 1 else []), value, out
    return Graph("quadrature", tensors, (*ops, total("total", value, out)), ("centre", "width"), ("out",))


@dataclass(frozen=True)
class Quadrature(Workload):
    """The integral of a function with peaks, by intervals that are halved where they are not exact enough yet.

    Raises:
        ShapeError: more levels than float32 can distinguish.
    """

    name: ClassVar[str] = "quadrature"
    presets: ClassVar[Presets] = {
        "small": {"levels": 6, "peaks": 3, "points": 16, "sharpest": 2},
        "peaks": {"levels": 12, "peaks": 256, "points": 16, "sharpest": 4},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "peaks"
    size: ClassVar[str] = "peaks"
    sizes: ClassVar[tuple[int, ...]] = (64, 256)
    weights: ClassVar[tuple[str, ...]] = ("centre", "width")

    levels: Annotated[
        int, Option("Levels of intervals, each half as long as those of the one before.", least=1, most=MAX_LEVELS)
    ]
    peaks: Annotated[int, Option("Peaks of the function.", least=1)]
    points: Annotated[int, Option("Steps in an interval, a power of two.", least=4)]
    digits: Annotated[int, Option("Decimal digits to which an interval is exact.", least=1, most=30)] = 5
    sharpest: Annotated[int, Option("Decimal digits of the width of the narrowest peak.", least=1, most=30)] = 3

    @property
    def title(self) -> str:
        return f"adaptive quadrature of {self.peaks} peaks, {self.levels} levels, {self.points} steps, 1e-{self.digits}"

    @property
    def flops(self) -> float:
        """Floating-point operations if all intervals of the last level are requested."""
        return 5.0 * self.peaks * (self.points + 1) * ((1 << self.levels) - 1)

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        return quadrature(self.levels, self.peaks, self.points, 10.0**-self.digits)

    def make_inputs(self, seed: int) -> Inputs:
        """Draw centres uniformly over [0, 1], and widths log-uniformly up to 0.1."""
        random = np.random.default_rng(seed)
        return {
            "centre": random.uniform(0.0, 1.0, self.peaks).astype(np.float32),
            "width": (10.0 ** random.uniform(-self.sharpest, -1.0, self.peaks)).astype(np.float32),
        }

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sum over all intervals of every level, of which only requested ones count."""
        return {"out": sum(value.sum() for _, value in self._evaluate_levels(xp, tensors)).reshape(1)}

    def find_wanted_intervals(self, seed: int) -> NDArray[np.bool_]:
        """Return a mask of the intervals that the inputs of a seed request, all levels concatenated."""
        inputs = {name: value.astype(np.float64) for name, value in self.make_inputs(seed).items()}
        return np.concatenate([runs for runs, _ in self._evaluate_levels(np, inputs)])

    def _evaluate_levels(self, xp: Any, tensors: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """Return for each level the mask of requested intervals and the values that they contribute."""
        c, w = tensors["centre"], tensors["width"]
        numbers = {"dtype": c.dtype} if xp is np else {"dtype": c.dtype, "device": c.device}
        steps = xp.arange(self.points + 1, **numbers) / self.points
        runs, found = xp.arange(1, **numbers) == 0, []
        for level in range(self.levels):
            length = 0.5**level
            t = (xp.arange(1 << level, **numbers)[:, None] + steps) * length
            height = (w / (w**2 + (t[..., None] - c) ** 2)).sum(-1)
            fine, coarse = length * _apply_simpson(height), length * _apply_simpson(height[:, ::2])
            off = fine - coarse
            split = runs & (abs(off) > 15 * 10.0**-self.digits) & (level < self.levels - 1)
            found.append((runs, (fine + off / 15) * (runs & ~split)))
            runs = xp.stack([split, split], -1).reshape(-1)
        return found


def _apply_simpson(height: Any) -> Any:
    """Apply Simpson's rule over [0, 1] to each row of equidistant values."""
    ends, odd, even = height[:, 0] + height[:, -1], height[:, 1:-1:2].sum(-1), height[:, 2:-1:2].sum(-1)
    return (ends + 4 * odd + 2 * even) / (3 * (height.shape[1] - 1))
