"""Index expressions: integers made of loop variables and run-time extents.

Worked example, the slot and the parity of step ``i + 3`` of a ring of four stages, at ``i = 6``:

    flat   = i + 3            9
    slot   = flat % 4         1
    parity = flat // 4 % 2    0      the third time round: phases 0, 1, then 2

Constants fold when an expression is built, so ``Var("i") * 1 + 0`` is ``Var("i")`` again. Division rounds down. A
divisor is positive: building an expression rejects a constant that is not, and ``check`` verifies the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import gcd
from operator import index as integer_of
from typing import SupportsIndex

from interlace.core.errors import PipelineError


class IndexOp(Enum):
    """Operators that combine two index expressions."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    FLOORDIV = "//"
    MOD = "%"
    MIN = "min"
    MAX = "max"


#: Operators with a divisor.
DIVISIONS = (IndexOp.FLOORDIV, IndexOp.MOD)


class Index:
    """An integer expression; ``+ - * // %`` build larger ones, ``<`` a condition."""

    def __add__(self, other: IndexLike) -> Index:
        return make_binary(IndexOp.ADD, self, other)

    def __radd__(self, other: SupportsIndex) -> Index:
        return make_binary(IndexOp.ADD, other, self)

    def __sub__(self, other: IndexLike) -> Index:
        return make_binary(IndexOp.SUB, self, other)

    def __rsub__(self, other: SupportsIndex) -> Index:
        return make_binary(IndexOp.SUB, other, self)

    def __mul__(self, other: IndexLike) -> Index:
        return make_binary(IndexOp.MUL, self, other)

    def __rmul__(self, other: SupportsIndex) -> Index:
        return make_binary(IndexOp.MUL, other, self)

    def __floordiv__(self, other: IndexLike) -> Index:
        return make_binary(IndexOp.FLOORDIV, self, other)

    def __mod__(self, other: IndexLike) -> Index:
        return make_binary(IndexOp.MOD, self, other)

    def __lt__(self, other: IndexLike) -> Less:
        return Less(self, as_index(other))


@dataclass(frozen=True)
class Const(Index):
    """A number."""

    value: int


@dataclass(frozen=True)
class Var(Index):
    """A loop variable, or a run-time extent (one of the kernel's symbols)."""

    name: str


@dataclass(frozen=True)
class BinaryIndex(Index):
    """Two expressions combined. Build it with ``make_binary``, which folds constants."""

    op: IndexOp
    left: Index
    right: Index


@dataclass(frozen=True)
class Less:
    """The condition ``left < right``."""

    left: Index
    right: Index


IndexLike = Index | SupportsIndex


def as_integer(value: SupportsIndex) -> int:
    """Convert ``value``, possibly a NumPy integer, to a Python integer.

    Raises:
        PipelineError: the value is not an integer.
    """
    try:
        return integer_of(value)
    except TypeError as error:
        raise PipelineError(f"{value!r} stands where an integer is needed; use // to divide, or int()") from error


def as_index(value: IndexLike) -> Index:
    """Convert ``value`` to an index expression.

    Raises:
        PipelineError: the value is neither an expression nor an integer.
    """
    return value if isinstance(value, Index) else Const(as_integer(value))


def minimum(left: IndexLike, right: IndexLike) -> Index:
    """Return the smaller of the two."""
    return make_binary(IndexOp.MIN, left, right)


def maximum(left: IndexLike, right: IndexLike) -> Index:
    """Return the larger of the two."""
    return make_binary(IndexOp.MAX, left, right)


def ceil_div(numerator: IndexLike, denominator: SupportsIndex) -> Index:
    """Return the number of pieces of size ``denominator`` that cover ``numerator``."""
    piece = as_integer(denominator)
    return (as_index(numerator) + (piece - 1)) // piece


def make_binary(op: IndexOp, left: IndexLike, right: IndexLike) -> Index:
    """Build ``left op right``, with constants folded and neutral elements dropped.

    Raises:
        PipelineError: division by a number that is not positive.
    """
    a, b = as_index(left), as_index(right)
    if op in DIVISIONS and isinstance(b, Const):
        _check_divisor(op, b.value)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(_apply(op, a.value, b.value))
    if op is IndexOp.ADD and isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        if b.value == 0 and op in (IndexOp.ADD, IndexOp.SUB):
            return a
        if b.value == 0 and op is IndexOp.MUL:
            return Const(0)
        if b.value == 1 and op in (IndexOp.MUL, IndexOp.FLOORDIV):
            return a
        if b.value == 1 and op is IndexOp.MOD:
            return Const(0)
        inner = _split_shift(a) if op in (IndexOp.ADD, IndexOp.SUB) else None
        if inner is not None:  # fold (x + 3) + 2 and (x + 3) - 2 to one constant
            base, shift = inner
            total = shift + (b.value if op is IndexOp.ADD else -b.value)
            return (
                base if total == 0 else BinaryIndex(IndexOp.ADD if total > 0 else IndexOp.SUB, base, Const(abs(total)))
            )
    if isinstance(a, Const):
        if a.value == 0 and op in (IndexOp.MUL, IndexOp.FLOORDIV, IndexOp.MOD):
            return a
        if a.value == 1 and op is IndexOp.MUL:
            return b
    return BinaryIndex(op, a, b)


def _split_shift(index: Index) -> tuple[Index, int] | None:
    """Split ``x + c`` or ``x - c`` into ``(x, c)``."""
    if isinstance(index, BinaryIndex) and isinstance(index.right, Const):
        if index.op is IndexOp.ADD:
            return index.left, index.right.value
        if index.op is IndexOp.SUB:
            return index.left, -index.right.value
    return None


def evaluate(index: Index, values: Mapping[str, int]) -> int:
    """Evaluate ``index`` under ``values``."""
    if isinstance(index, Const):
        return index.value
    if isinstance(index, Var):
        return values[index.name]
    assert isinstance(index, BinaryIndex)
    return _apply(index.op, evaluate(index.left, values), evaluate(index.right, values))


def is_true(condition: Less, values: Mapping[str, int]) -> bool:
    """Return True if ``condition`` is true under ``values``."""
    return evaluate(condition.left, values) < evaluate(condition.right, values)


def substitute(index: Index, by: Mapping[str, Index]) -> Index:
    """Return ``index`` with variables replaced."""
    if isinstance(index, Var):
        return by.get(index.name, index)
    if isinstance(index, BinaryIndex):
        return make_binary(index.op, substitute(index.left, by), substitute(index.right, by))
    return index


def is_never_negative(index: Index) -> bool:
    """Return True if ``index`` is known to be 0 or more, as extents and loop variables are."""
    if isinstance(index, BinaryIndex):
        left, right = is_never_negative(index.left), is_never_negative(index.right)
        return (left or right) if index.op is IndexOp.MAX else left and right and index.op is not IndexOp.SUB
    return not isinstance(index, Const) or index.value >= 0


def is_always_positive(index: Index) -> bool:
    """Return True if ``index`` is known to be 1 or more."""
    if isinstance(index, BinaryIndex):
        left, right = is_always_positive(index.left), is_always_positive(index.right)
        match index.op:
            case IndexOp.MUL | IndexOp.MIN:
                return left and right
            case IndexOp.MAX:
                return left or right
            case IndexOp.ADD:
                return (left and is_never_negative(index.right)) or (right and is_never_negative(index.left))
        return False
    return isinstance(index, Const) and index.value > 0


def walk_divisors(index: Index) -> Iterator[Index]:
    """Yield every divisor in ``index``."""
    if isinstance(index, BinaryIndex):
        yield from walk_divisors(index.left)
        yield from walk_divisors(index.right)
        if index.op in DIVISIONS:
            yield index.right


def find_divisor(index: Index) -> int:
    """Return a number that divides every value of ``index``; 0 for the constant 0."""
    if isinstance(index, Const):
        return abs(index.value)
    if isinstance(index, BinaryIndex):
        left, right = find_divisor(index.left), find_divisor(index.right)
        if index.op is IndexOp.MUL:
            return left * right
        if index.op is not IndexOp.FLOORDIV:
            return gcd(left, right)
    return 1


def find_names(index: Index) -> frozenset[str]:
    """Return every variable and symbol in ``index``."""
    if isinstance(index, Var):
        return frozenset((index.name,))
    if isinstance(index, BinaryIndex):
        return find_names(index.left) | find_names(index.right)
    return frozenset()


def _check_divisor(op: IndexOp, divisor: int) -> None:
    if divisor < 1:
        raise PipelineError(f"an index is taken {op.value} {divisor}; divide by numbers from 1 up")


def _apply(op: IndexOp, a: int, b: int) -> int:
    match op:
        case IndexOp.ADD:
            return a + b
        case IndexOp.SUB:
            return a - b
        case IndexOp.MUL:
            return a * b
        case IndexOp.FLOORDIV:
            _check_divisor(op, b)
            return a // b
        case IndexOp.MOD:
            _check_divisor(op, b)
            return a % b
        case IndexOp.MIN:
            return min(a, b)
        case IndexOp.MAX:
            return max(a, b)
