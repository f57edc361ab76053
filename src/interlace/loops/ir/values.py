"""Values: arithmetic on the elements of tiles.

A value has no shape of its own. The statement that uses it sets the tile over which it is evaluated, and every
``ReadBox`` in it broadcasts to that tile as in NumPy (aligned at the last dimension, extent 1 repeats).

Worked example over a tile of 2 x 3, with ``x`` a 2 x 3 box, ``bias`` a box of 3 and ``scale`` a box of 2 x 1:

    (x + bias) * scale      element (i, j) is (x[i, j] + bias[j]) * scale[i, 0]
    where(less(Coord(1) + 4, 6), x, 0.0)      keeps columns 0 and 1: their coordinates plus 4 are below 6

Arithmetic is in fp32; results are rounded to the dtype of the destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from interlace.loops.ir.index import Index


class ValueOp(Enum):
    """Elementwise operations; the number of operands follows from the operation."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MAX = "max"
    MIN = "min"
    NEG = "neg"
    EXP = "exp"
    TANH = "tanh"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    LESS = "<"
    """1 if the first operand is less than the second, else 0."""
    WHERE = "where"
    """The second operand if the first is not 0, else the third."""


class Arithmetic:
    """Base class with the operators that build values, for everything that represents a tile of numbers."""

    def to_value(self) -> Value:
        """Return the value that represents this object in an expression."""
        raise NotImplementedError

    def __add__(self, other: ValueLike) -> Value:
        return apply(ValueOp.ADD, self, other)

    def __radd__(self, other: ValueLike) -> Value:
        return apply(ValueOp.ADD, other, self)

    def __sub__(self, other: ValueLike) -> Value:
        return apply(ValueOp.SUB, self, other)

    def __rsub__(self, other: ValueLike) -> Value:
        return apply(ValueOp.SUB, other, self)

    def __mul__(self, other: ValueLike) -> Value:
        return apply(ValueOp.MUL, self, other)

    def __rmul__(self, other: ValueLike) -> Value:
        return apply(ValueOp.MUL, other, self)

    def __truediv__(self, other: ValueLike) -> Value:
        return apply(ValueOp.DIV, self, other)

    def __neg__(self) -> Value:
        return apply(ValueOp.NEG, self)


class Value(Arithmetic):
    """An expression over the elements of a tile."""

    def to_value(self) -> Value:
        return self


@dataclass(frozen=True)
class Scalar(Value):
    """A constant that is the same for all elements and representable in fp32; infinities are allowed, NaN is not."""

    number: float


@dataclass(frozen=True)
class FromIndex(Value):
    """An index expression as a number, for example a run-time extent to divide by."""

    index: Index


@dataclass(frozen=True)
class Coord(Value):
    """The element's own coordinate along ``axis`` of the tile that the statement runs over."""

    axis: int


@dataclass(frozen=True)
class Box(Arithmetic):
    """``tensor[origin : origin + shape]``, in slot ``slot`` of a ring.

    The shapes of the two sides of a copy agree once extents of 1 are dropped.
    """

    tensor: str
    origin: tuple[Index, ...]
    shape: tuple[int, ...]
    slot: Index | None = None

    def to_value(self) -> Value:
        return ReadBox(self)


@dataclass(frozen=True)
class ReadBox(Value):
    """The elements of a box in global, shared or register memory."""

    box: Box


@dataclass(frozen=True)
class Apply(Value):
    """An operation on one to three values."""

    op: ValueOp
    args: tuple[Value, ...]


ValueLike = Arithmetic | Index | float


def as_value(like: ValueLike) -> Value:
    """Convert ``like`` to a value: read tensors and boxes, wrap indices and numbers."""
    if isinstance(like, Arithmetic):
        return like.to_value()
    if isinstance(like, Index):
        return FromIndex(like)
    return Scalar(float(like))


def apply(op: ValueOp, *args: ValueLike) -> Value:
    """Apply ``op`` to the arguments."""
    return Apply(op, tuple(as_value(a) for a in args))


def exp(x: ValueLike) -> Value:
    """Return e to the power of x."""
    return apply(ValueOp.EXP, x)


def tanh(x: ValueLike) -> Value:
    """Return the hyperbolic tangent."""
    return apply(ValueOp.TANH, x)


def sqrt(x: ValueLike) -> Value:
    """Return the square root."""
    return apply(ValueOp.SQRT, x)


def rsqrt(x: ValueLike) -> Value:
    """Return the reciprocal of the square root."""
    return apply(ValueOp.RSQRT, x)


def select_larger(x: ValueLike, y: ValueLike) -> Value:
    """Return the larger of two values."""
    return apply(ValueOp.MAX, x, y)


def select_smaller(x: ValueLike, y: ValueLike) -> Value:
    """Return the smaller of two values."""
    return apply(ValueOp.MIN, x, y)


def compare_less(x: ValueLike, y: ValueLike) -> Value:
    """Return 1 where x < y, else 0."""
    return apply(ValueOp.LESS, x, y)


def where(condition: ValueLike, x: ValueLike, y: ValueLike) -> Value:
    """Return x where the condition is not 0, else y."""
    return apply(ValueOp.WHERE, condition, x, y)
