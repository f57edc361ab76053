"""Index expressions as CUDA C++, in 32-bit integers.

Division in C rounds towards zero, in the IR down; they differ only below 0. Dividends that are known not to be negative
use ``quotient`` and ``rest``, which divide unsigned (a shift or a mask for powers of two). All others use
``floor_quotient`` and ``floor_rest``. Worked example, slot and parity of the step three ahead in a ring of four:

    (i + 3) % 4            rest(i_ + 3, 4)
    (i + 3) // 4 % 2       rest(quotient(i_ + 3, 4), 2)
    (m - b + 131) // 132   floor_quotient(m_ - b_ + 131, 132)
"""

from __future__ import annotations

from interlace.loops.cuda.names import mangle
from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexOp, Less, Var, is_never_negative
from interlace.loops.ir.statements import LoopTensor

_BINDING = {IndexOp.ADD: 1, IndexOp.SUB: 1, IndexOp.MUL: 2}
_CALLS = {IndexOp.MIN: "min", IndexOp.MAX: "max", IndexOp.FLOORDIV: "quotient", IndexOp.MOD: "rest"}


def emit_index(index: Index, outer: int = 0) -> str:
    """Return ``index`` as an expression, in parentheses if it binds weaker than ``outer`` (1 sums, 2 products)."""
    if isinstance(index, Const):
        return str(index.value)
    if isinstance(index, Var):
        return mangle(index.name)
    assert isinstance(index, BinaryIndex)
    if index.op in _CALLS:
        name = _CALLS[index.op]
        if index.op in (IndexOp.FLOORDIV, IndexOp.MOD) and not is_never_negative(index.left):
            name = f"floor_{name}"
        return f"{name}({emit_index(index.left)}, {emit_index(index.right)})"
    binding = _BINDING[index.op]
    text = f"{emit_index(index.left, binding)} {index.op.value} {emit_index(index.right, binding + 1)}"
    return f"({text})" if binding < outer else text


def emit_less(condition: Less) -> str:
    """Return ``condition`` as an expression."""
    return f"{emit_index(condition.left)} < {emit_index(condition.right)}"


def emit_address(tensor: LoopTensor, offset: str) -> str:
    """Return the address of the element at ``offset`` of a global tensor."""
    return f"{mangle(tensor.name)} + ({offset})"


def emit_row_major(coordinates: list[str], extents: list[str], *, wide: bool = False) -> str:
    """Return the row-major offset of an element, in 64 bits if ``wide``."""
    offset = ""
    for place, extent in zip(coordinates, extents, strict=True):
        if not offset:
            offset = f"(long long)({place})" if wide else place
        elif offset == "0":
            offset = place
        else:
            offset = f"({offset}) * {extent} + {place}"
    return offset
