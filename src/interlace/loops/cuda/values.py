"""Values as CUDA C++ expressions, for the element ``j`` of a thread's current vector.

Worked example, ``select_larger(x_s * z_r + 1, 0)`` with the operands' elements in ``v0[j]`` and ``z_r_[j]``:

    larger(((v0[j] * z_r_[j]) + 1.0f), 0.0f)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

from interlace.loops.cuda.indices import emit_index
from interlace.loops.ir.values import Apply, Box, Coord, FromIndex, ReadBox, Scalar, Value, ValueOp

_INFIX = {ValueOp.ADD: "+", ValueOp.SUB: "-", ValueOp.MUL: "*", ValueOp.DIV: "/"}
_CALLS = {
    ValueOp.MAX: "larger",
    ValueOp.MIN: "smaller",
    ValueOp.EXP: "expf",
    ValueOp.TANH: "tanhf",
    ValueOp.SQRT: "sqrtf",
    ValueOp.RSQRT: "rsqrtf",
}


def emit_value(value: Value, shape: tuple[int, ...], reads: Mapping[Box, str]) -> str:
    """Return the expression of ``value`` over a tile of ``shape``.

    Args:
        reads: expression of each operand's element.
    """
    match value:
        case Scalar():
            return _emit_number(value.number)
        case FromIndex():
            return f"(float)({emit_index(value.index)})"
        case Coord():
            last = value.axis == len(shape) - 1
            return f"(float)(c{value.axis} + j)" if last else f"(float)c{value.axis}"
        case ReadBox():
            return reads[value.box]
    assert isinstance(value, Apply)
    args = [emit_value(a, shape, reads) for a in value.args]
    if value.op in _INFIX:
        return f"({args[0]} {_INFIX[value.op]} {args[1]})"
    if value.op is ValueOp.NEG:
        return f"(-{args[0]})"
    if value.op is ValueOp.LESS:
        return f"({args[0]} < {args[1]} ? 1.0f : 0.0f)"
    if value.op is ValueOp.WHERE:
        return f"({args[0]} != 0.0f ? {args[1]} : {args[2]})"
    return f"{_CALLS[value.op]}({', '.join(args)})"


def _emit_number(number: float) -> str:
    if isinf(number):
        return "INFINITE" if number > 0 else "(-INFINITE)"
    text = f"{number!r}f"
    return f"({text})" if number < 0 else text
