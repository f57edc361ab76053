"""Tensors, and the regions of them that tiles read and write."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from interlace.core.arguments import check_sequence, check_type
from interlace.core.dtypes import DType, suggest_dtype
from interlace.core.errors import ShapeError


@dataclass(frozen=True)
class Tensor:
    """A named array in global memory, row-major and contiguous.

    Raises:
        ArgumentError: a name, shape or dtype of the wrong type.
        ShapeError: no extents, an extent that is not a positive integer, or 2^62 elements or more.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        check_type(self.name, str, "Tensor", "name", "'x'")
        where = f"tensor {self.name!r}"
        check_type(self.dtype, DType, where, "dtype", suggest_dtype(self.dtype))
        object.__setattr__(self, "shape", check_sequence(self.shape, object, where, "shape"))
        if not self.shape or any(type(n) is not int or n < 1 for n in self.shape):
            raise ShapeError(f"tensor {self.name!r} has shape {self.shape}; every extent must be a positive int")
        if prod(self.shape) >= 1 << 62:
            raise ShapeError(f"tensor {self.name!r} has shape {self.shape}; use fewer than 2^62 elements")

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}[{' x '.join(map(str, self.shape))}] {self.dtype}"


@dataclass(frozen=True)
class Region:
    """A half-open integer box of a tensor: ``lo[d] <= x[d] < hi[d]``."""

    tensor: str
    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """True if the box holds no element."""
        return any(a >= b for a, b in zip(self.lo, self.hi, strict=True))

    def intersect(self, other: Region) -> Region:
        """Return the common box of two regions of one tensor (possibly empty)."""
        lo = tuple(map(max, self.lo, other.lo))
        hi = tuple(map(min, self.hi, other.hi))
        return Region(self.tensor, lo, hi)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The region as an index into an array."""
        return tuple(slice(a, b) for a, b in zip(self.lo, self.hi, strict=True))

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(f'{a}:{b}' for a, b in zip(self.lo, self.hi, strict=True))}]"
