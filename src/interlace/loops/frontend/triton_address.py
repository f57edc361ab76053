"""Addresses of a Triton function as boxes of tensors.

Worked example: x has 256 x 1000 elements, ``row = pid_0 * 16 + arange(16)[:, None]``, ``col = arange(1024)[None, :]``.
The offset ``row * 1000 + col`` has the coefficients 16000 for pid_0, 1000 for axis -2 and 1 for axis -1. Divided by the
strides (1000, 1), these are 16 and 1 along the rows and 1 along the columns: the box x[pid_0 * 16 : +16, 0 : +1024].
Columns reach 1023, so the mask must hold ``col - 1000 < 0``, and no further condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NoReturn

import numpy as np

from interlace.loops.ir.index import Const, Index, Var
from interlace.loops.ir.values import Coord, Value, as_value, compare_less, where

Key = str | int  # a program id by name, or an axis of the tile counted from the right: -1, -2
_EXACT = 1 << 24  # integers below are exact in fp32


class Unsupported(Exception):
    """A construct without a meaning in loops; ``convert_triton`` adds function, line and source to the message."""


class Traced:
    """A value of a Triton function, which Python must neither branch on nor compare by identity."""

    def __bool__(self) -> NoReturn:
        raise Unsupported("a condition that is not known before the run; use a mask, or tl.where")

    def __eq__(self, other: object) -> NoReturn:
        raise Unsupported("only <, <=, > and >= make masks")

    __hash__ = object.__hash__


class Integers(Traced):
    """A tile of integers, linear in program ids and in coordinates of the tile.

    Attributes:
        terms: coefficient of each program id and axis; none is 0.
    """

    def __init__(self, const: int, terms: Mapping[Key, int] | None = None, shape: tuple[int, ...] = ()) -> None:
        self.const, self.shape = const, shape
        self.terms = {key: n for key, n in (terms or {}).items() if n}

    def __add__(self, other: Integers | int) -> Integers:
        b = as_integers(other)
        terms = {key: self.terms.get(key, 0) + b.terms.get(key, 0) for key in (*self.terms, *b.terms)}
        return Integers(self.const + b.const, terms, broadcast_shapes(self.shape, b.shape))

    def __mul__(self, other: Integers | int) -> Integers:
        number, factor = (self, as_integers(other)) if not self.terms else (as_integers(other), self)
        if number.terms:
            raise Unsupported("the product of two integers that both vary is not linear; keep one of them a number")
        terms = {key: n * number.const for key, n in factor.terms.items()}
        return Integers(number.const * factor.const, terms, broadcast_shapes(number.shape, factor.shape))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Integers:
        return self * -1

    def __sub__(self, other: Integers | int) -> Integers:
        return self + as_integers(other) * -1

    def __rsub__(self, other: Integers | int) -> Integers:
        return as_integers(other) + self * -1

    def __lt__(self, other: Integers | int) -> Mask:
        return Mask(self - other)

    def __le__(self, other: Integers | int) -> Mask:
        return Mask(self - other - 1)

    def __gt__(self, other: Integers | int) -> Mask:
        return Mask(other - self)

    def __ge__(self, other: Integers | int) -> Mask:
        return Mask(other - self - 1)

    def __getitem__(self, index: object) -> Integers:
        axis = find_new_axis(index, self.shape)
        terms = {-2 if axis and key == -1 else key: n for key, n in self.terms.items()}
        return Integers(self.const, terms, (*self.shape, 1) if axis else (1, *self.shape))

    def to(self, dtype: object) -> Integers:
        """Return itself for an integer type."""
        if dtype is not int:
            raise Unsupported("integers are no numbers of a tile; load them as a tensor")
        return self

    def drop_zeros(self, counts: Mapping[Key, int]) -> Integers:
        """Return it without program ids and axes that are always 0."""
        return Integers(self.const, {key: n for key, n in self.terms.items() if counts[key] > 1}, self.shape)

    def compute_bounds(self, counts: Mapping[Key, int]) -> tuple[int, int]:
        """Return the least and the largest value."""
        spans = [n * (counts[key] - 1) for key, n in self.terms.items()]
        return self.const + sum(s for s in spans if s < 0), self.const + sum(s for s in spans if s > 0)

    def is_same(self, other: Integers) -> bool:
        """Return True if all values are equal."""
        return (self.const, self.terms) == (other.const, other.terms)

    def build_origin(self) -> Index:
        """Return the value at coordinates 0 of the tile."""
        index: Index = Const(self.const)
        for key, n in self.terms.items():
            index = index + Var(key) * n if isinstance(key, str) else index
        return index


class Mask(Traced):
    """The elements of a tile for which all of ``negative`` are below 0."""

    def __init__(self, *negative: Integers) -> None:
        self.negative = negative
        self.shape = broadcast_shapes(*(n.shape for n in negative))

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise Unsupported("only masks of integers are combined")
        return Mask(*self.negative, *other.negative)

    def __getitem__(self, index: object) -> Mask:
        return Mask(*(n[index] for n in self.negative))

    def select(self, inside: Value, outside: Value, shape: tuple[int, ...], programs: Mapping[str, int]) -> Value:
        """Return ``inside`` where the mask holds, else ``outside``, in a statement over ``shape``."""
        for n in self.negative:
            if max(map(abs, n.compute_bounds(count_values(programs, shape)))) >= _EXACT:
                raise Unsupported(f"the mask compares integers of {_EXACT} or more, which fp32 does not hold")
            value = as_value(n.build_origin())
            for key, factor in n.terms.items():
                value = value + Coord(len(shape) + key) * factor if isinstance(key, int) else value
            inside = where(compare_less(value, 0), inside, outside)
        return inside


def as_integers(value: object) -> Integers:
    """Convert a number."""
    if isinstance(value, bool) or not isinstance(value, int | Integers):
        raise Unsupported("an operand is no integer that is linear in program ids and tl.arange")
    return value if isinstance(value, Integers) else Integers(value)


def find_new_axis(index: object, shape: tuple[int, ...]) -> int:
    """Return 0 for ``vector[None, :]``, 1 for ``vector[:, None]``."""
    for axis, way in enumerate(((None, slice(None)), (slice(None), None))):
        if index == way and len(shape) == 1:
            return axis
    raise Unsupported("only vectors are indexed, by [:, None] and [None, :]")


def count_values(programs: Mapping[str, int], shape: tuple[int, ...]) -> dict[Key, int]:
    """Return the number of values of each program id and each axis of a tile."""
    counts: dict[Key, int] = {}
    counts.update(programs)
    counts.update((axis, shape[axis]) for axis in range(-len(shape), 0))
    return counts


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an operation on tiles of these shapes."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise Unsupported(f"tiles of {' and '.join(map(str, shapes))} do not line up") from None


def find_box(
    extents: tuple[int, ...], offset: Integers, mask: Mask | None, programs: Mapping[str, int]
) -> tuple[tuple[Index, ...], tuple[int, ...], Mask | None]:
    """Return the box of a row-major tensor whose elements have these offsets.

    Args:
        programs: number of values of each program id.

    Returns:
        Origin and shape of the box, and the mask of its elements inside the tensor, None if all are.

    Raises:
        Unsupported: the elements are no box, or the mask differs from the tensor's bounds.
    """
    if mask is not None and broadcast_shapes(offset.shape, mask.shape) != offset.shape:
        raise Unsupported(f"the mask has shape {mask.shape}, the pointer {offset.shape}; give both the pointer's")
    counts = count_values(programs, offset.shape)
    conditions = [n.drop_zeros(counts) for n in (mask.negative if mask is not None else ())]
    conditions = [n for n in conditions if n.compute_bounds(counts)[1] >= 0]
    rest, coordinates, over = offset.drop_zeros(counts), [], []
    for dimension, extent in enumerate(extents):
        stride = prod(extents[dimension + 1 :])
        at = Integers(rest.const // stride, {key: n // stride for key, n in rest.terms.items()}, offset.shape)
        rest = rest - at * stride
        coordinates.append(at)
        least, most = at.compute_bounds(counts)
        if least < 0:
            raise Unsupported(f"the coordinate along dimension {dimension} of {extents} may be {least}; begin at 0")
        if most >= extent:
            over.append(at - extent)
            if not any(over[-1].is_same(n) for n in conditions):
                raise Unsupported(
                    f"the coordinate along dimension {dimension} of {extents} reaches {most}; mask it by < {extent}"
                )
    if not all(any(n.is_same(o) for o in over) for n in conditions):
        raise Unsupported(f"the mask leaves out elements of the tensor {extents}; loops mask by its extents alone")
    axes = [[key for key in at.terms if isinstance(key, int)] for at in coordinates]
    steps = {at.terms[key] for at, keys in zip(coordinates, axes, strict=True) for key in keys}
    along = [key for keys in axes for key in keys]
    if along != [a for a in range(-len(offset.shape), 0) if counts[a] > 1] or steps - {1} or max(map(len, axes)) > 1:
        raise Unsupported(f"the elements of the tile {offset.shape} are no box of the tensor {extents}, in this order")
    shape = tuple(counts[keys[0]] if keys else 1 for keys in axes)
    return tuple(at.build_origin() for at in coordinates), shape, Mask(*over) if over else None
