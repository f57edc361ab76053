"""Access maps: the region of each tensor that a tile touches, as data.

The bounds of a region are affine in the tile coordinates ``t0, t1, ...`` and in the item's k-range
``[k.lo, k.hi)``. The box is clipped to the tensor. Worked example, a 64 x 128 tile of C = A @ B with
A of shape (100, 512), tile (1, 3) and k-range [256, 320):

    i, j = axes(2)
    A: (i.block(64), K)             rows 64..128 clipped to 64..100, columns 256..320
    B: (K, j.block(128))            rows 256..320, columns 384..512
    C: (i.block(64), j.block(128))  rows 64..100, columns 384..512

Maps are values: they print in the notation in which they are written, support equality, and serialise to JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import index

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_int, check_sequence, check_type
from interlace.core.errors import ShapeError

Ints = NDArray[np.int64]
FULL = 1 << 62  # an upper bound larger than every extent


@dataclass(frozen=True)
class Affine:
    """Affine expression ``const + sum(tile[d] * t_d) + k_lo * k.lo + k_hi * k.hi`` with integer factors.

    Trailing zeros of ``tile`` are dropped, so that equivalent expressions compare equal: ``i + 0 * j == i``.

    Raises:
        ShapeError: a factor that is not an integer.
    """

    const: int = 0
    tile: tuple[int, ...] = ()
    k_lo: int = 0
    k_hi: int = 0

    def __post_init__(self) -> None:
        try:
            const, k_lo, k_hi, *tile = map(index, (self.const, self.k_lo, self.k_hi, *self.tile))
        except TypeError:
            factors = (self.const, self.tile, self.k_lo, self.k_hi)
            raise ShapeError(f"a bound of an access map has factors {factors}; use integers") from None
        while tile and not tile[-1]:
            tile.pop()
        for name, value in (("const", const), ("tile", tuple(tile)), ("k_lo", k_lo), ("k_hi", k_hi)):
            object.__setattr__(self, name, value)

    def __add__(self, other: Affine | int) -> Affine:
        if not isinstance(other, Affine):
            other = Affine(other)
        return Affine(
            self.const + other.const,
            tuple(a + b for a, b in zip_longest(self.tile, other.tile, fillvalue=0)),
            self.k_lo + other.k_lo,
            self.k_hi + other.k_hi,
        )

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.const * factor, tuple(c * factor for c in self.tile), self.k_lo * factor, self.k_hi * factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    def __rsub__(self, other: int) -> Affine:
        return -self + other

    def block(self, size: int, halo: int = 0) -> Span:
        """Return ``[size * self - halo, size * self + size + halo)``: the usual block of a tile, with a halo."""
        size, halo = check_int(size, "block", "size"), check_int(halo, "block", "halo")
        return Span(self * size - halo, self * size + (size + halo))

    def evaluate(self, coords: Ints, k_lo: Ints, k_hi: Ints) -> Ints:
        """Evaluate the expression for n tiles: ``coords`` of shape (n, d), ``k_lo`` and ``k_hi`` of shape (n,)."""
        value = np.full(len(coords), self.const, np.int64)
        for d, factor in enumerate(self.tile):
            if factor:
                value += factor * coords[:, d]
        if self.k_lo:
            value += self.k_lo * k_lo
        if self.k_hi:
            value += self.k_hi * k_hi
        return value

    def bound_magnitude(self, grid: Sequence[int], k_extent: int) -> int:
        """Return an upper bound on the magnitude of all values in ``evaluate``, for ``grid`` and k in 0..``k_extent``.

        A factor counts even if its coordinate is always 0.
        """
        far = abs(self.const)
        for factor, n in zip(self.tile, grid, strict=False):
            far += abs(factor) * max(n - 1, 1)
        return far + (abs(self.k_lo) + abs(self.k_hi)) * k_extent

    def __str__(self) -> str:
        names = [f"t{d}" for d in range(len(self.tile))] + ["k.lo", "k.hi"]
        terms = [
            name if c == 1 else f"{c}*{name}"
            for name, c in zip(names, (*self.tile, self.k_lo, self.k_hi), strict=True)
            if c
        ]
        if self.const or not terms:
            terms.append(str(self.const))
        return " + ".join(terms).replace("+ -", "- ")


@dataclass(frozen=True)
class Span:
    """Half-open range ``[lo, hi)`` along one dimension of a tensor; a bound may be passed as an integer.

    Raises:
        ArgumentError: a bound that is not an affine expression.
    """

    lo: Affine
    hi: Affine

    def __post_init__(self) -> None:
        for name, bound in (("lo", self.lo), ("hi", self.hi)):
            if not isinstance(bound, Affine):
                object.__setattr__(self, name, Affine(check_int(bound, "Span", name)))

    @property
    def uses_k(self) -> bool:
        """True if the span moves with the k-range."""
        lo, hi = self.lo, self.hi
        return bool(lo.k_lo or lo.k_hi or hi.k_lo or hi.k_hi)

    @property
    def is_monotonic_in_k(self) -> bool:
        """True if the span for part of a k-range lies inside the span for the whole range (always so without k)."""
        return self.lo.k_lo >= 0 >= self.lo.k_hi and self.hi.k_lo <= 0 <= self.hi.k_hi

    def __str__(self) -> str:
        return ":" if self == ALL else f"{self.lo} : {self.hi}"


#: The whole extent of a dimension.
ALL = Span(Affine(), Affine(FULL))
#: The item's k-range.
K = Span(Affine(k_lo=1), Affine(k_hi=1))


def axes(n: int) -> tuple[Affine, ...]:
    """Return the n tile coordinates, from which access maps are built."""
    return tuple(Affine(0, (0,) * d + (1,)) for d in range(check_int(n, "axes", "n")))


def constant_span(lo: int, hi: int) -> Span:
    """Return a constant range, the same for every tile (broadcast)."""
    return Span(Affine(check_int(lo, "fixed", "lo")), Affine(check_int(hi, "fixed", "hi")))


@dataclass(frozen=True)
class Access:
    """One tensor argument of a kernel and the region that each tile touches.

    Attributes:
        arg: name of the argument in the kernel.
        tensor: name of the tensor in the graph.
        spans: one span per dimension of the tensor.

    Raises:
        ArgumentError: a name or a span of the wrong type.
    """

    arg: str
    tensor: str
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        check_type(self.arg, str, "Access", "arg")
        check_type(self.tensor, str, f"access {self.arg!r}", "tensor")
        object.__setattr__(self, "spans", check_sequence(self.spans, Span, f"access {self.arg!r}", "spans"))

    @property
    def uses_k(self) -> bool:
        """True if the region depends on the k-range, so that a split item touches only its part."""
        return any(span.uses_k for span in self.spans)

    @property
    def tile_axes(self) -> int:
        """Number of tile coordinates that the map needs: the index of the last one in use, plus one."""
        factors = (bound.tile for span in self.spans for bound in (span.lo, span.hi))
        return max((d + 1 for tile in factors for d, factor in enumerate(tile) if factor), default=0)

    def check_rank(self, shape: Sequence[int]) -> None:
        """Check that the map has the rank of the tensor.

        Raises:
            ShapeError: the ranks differ.
        """
        if len(shape) != len(self.spans):
            raise ShapeError(
                f"access map of argument {self.arg!r} has {len(self.spans)} spans, "
                f"but tensor {self.tensor!r} has shape {tuple(shape)}; give one span per dimension"
            )

    def compute_bounds(self, shape: Sequence[int], coords: Ints, k_lo: Ints, k_hi: Ints) -> tuple[Ints, Ints]:
        """Return lower and upper bounds, each of shape (n, rank), clipped to ``shape``.

        Raises:
            ShapeError: the map and the tensor differ in rank.
        """
        self.check_rank(shape)
        lo = np.empty((len(coords), len(shape)), np.int64)
        hi = np.empty_like(lo)
        for d, (span, extent) in enumerate(zip(self.spans, shape, strict=True)):
            for bound, out in ((span.lo, lo), (span.hi, hi)):
                out[:, d] = np.minimum(np.maximum(bound.evaluate(coords, k_lo, k_hi), 0), extent)
        return lo, hi

    def __str__(self) -> str:
        return f"{self.arg}: {self.tensor}[{', '.join(map(str, self.spans))}]"
